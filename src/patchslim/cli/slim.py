"""`patchslim slim`: from a pretrained model and unlabelled images to a run folder with a faster model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from patchslim.cli import options
from patchslim.cli.old import check_names
from patchslim.cli.options import read_ratios, split_setting
from patchslim.cli.terminal import console, note_skipped, report, show_search
from patchslim.folder import SOURCE

if TYPE_CHECKING:
    from patchslim.hosts import HostInfo

FEW_IMAGES, MANY_IMAGES = 256, 1024  # docs/notebook/decisions.md


def slim(
    context: Context,
    model: options.Model,
    data: options.Data,
    target_speedup: Annotated[float | None, Option(metavar="X", help="Times as fast as now, here, e.g. 1.5.")] = None,
    target_macs: Annotated[str | None, Option(metavar="R[,R…]", help="Or: MACs to keep, e.g. 0.55.")] = None,
    tolerance: Annotated[float | None, Option(metavar="E", help="Or: relative error of what is read [0.01].")] = None,
    method: Annotated[str | None, Option(metavar="NAME", help="See `patchslim methods` [its default].")] = None,
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Of the method.")] = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = False,
    img_size: options.ImgSize = None,
    readout: options.Readout = None,
    images: Annotated[int | None, Option(min=1, metavar="K", help="To look at [256; some on a GPU: 1024].")] = None,
    memory: Annotated[float, Option(min=0.0, metavar="GIB", help="Bound on cached features.")] = 2.0,
    batch_size: options.BatchSize = 32,
    dtype: Annotated[str, Option(help=f"Of what is timed: {options.DTYPES}.")] = "float32",
    no_timing: Annotated[bool, Option("--no-timing", help="Don't time the slim model at the end.")] = False,
    device: options.Device = None,
    seed: options.Seed = 0,
    out: Annotated[Path | None, Option(metavar="RUN", help="Run folder [runs/MODEL].")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with an interrupted run.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Make a faster model from a pretrained one and a few hundred images. No labels are needed."""
    import torch

    from patchslim.cli.opening import default_folder, note_random, open_device, open_model, workers_for
    from patchslim.data import open_images
    from patchslim.hosts import inspect
    from patchslim.hosts.weights import weights_fingerprint
    from patchslim.methods import DEFAULT, Task, make, set_to
    from patchslim.runs.make import check_runs_folder, make_runs
    from patchslim.search import Target
    from patchslim.timing.latency import described

    if target_speedup is None and no_timing:
        options.refuse_idle(context, "nothing is timed with --no-timing", "dtype")
    method = DEFAULT if method is None else method
    ratios = read_ratios(target_macs)
    wanted: list[float | None] = [*ratios] or [None]
    target, *_ = [Target(tolerance, ratio, target_speedup, batch_size, dtype) for ratio in wanted]  # each is checked
    check_names([method])
    chosen = make(method, dict(map(split_setting, settings or [])))
    folder = out or default_folder("runs", model)
    check_runs_folder(folder, resume, sweep=len(ratios) > 1)
    place = open_device(device)
    torch.manual_seed(seed)  # random weights, where nothing better is given, are the same on --resume
    network = open_model(model, checkpoint, pretrained, img_size, readout)
    info = inspect(network)
    check_ratios(info, chosen, ratios)
    note_random([model], checkpoint, pretrained)
    # Where images choose their own patches, counts found with more of them hold better for others. A GPU has time.
    many = getattr(chosen, "many_images", False) and place.type == "cuda"
    limit = images or (MANY_IMAGES if many else FEW_IMAGES)
    source = open_images(data, model=network, limit=limit, seed=seed, workers=workers_for(place))
    how = {"seed": seed, "batch_size": batch_size, "memory_gib": memory}
    started = {
        "model": info.name,
        "method": method,
        "settings": set_to(chosen),
        "target": target.as_dict() | ({"macs": ratios} if len(ratios) > 1 else {}),
        "search": how,
        "weights": weights_fingerprint(network),
        "images": {"count": len(source), "fingerprint": source.fingerprint},
        SOURCE: data,
    }
    if target_speedup is not None:
        started["timed_on"] = described(place)  # times are those of a device
    with show_search(info) as listen:
        task = Task.of(network.to(place), source, target, **how, progress=listen)
        runs = make_runs(task, chosen, folder, started, ratios, timed=not no_timing)
    note_skipped(max(metrics["skipped_images"] for metrics in runs.values()), len(source))
    results = [{"run": str(run)} | metrics for run, metrics in runs.items()]
    text = "\n".join(summary(run, metrics) for run, metrics in runs.items())
    report(results[0] if len(ratios) < 2 else {"sweep": str(folder), "runs": results}, as_json, text)


def check_ratios(info: "HostInfo", method: Any, ratios: Sequence[float]) -> None:
    """Raise BudgetError for a ratio that the method can't reach; say so when one is more than any plan needs."""
    from patchslim.search.cost import check_reachable

    draft = method.draft(info) if hasattr(method, "draft") else None
    if draft is None:
        return
    most = draft.reachable()[1]
    for ratio in ratios:
        check_reachable(draft, ratio)
        if ratio > most:
            console.print(f"No plan needs more than {most:.3f} of the MACs: the last block computes only what is read.")


def summary(folder: Path, metrics: Mapping[str, Any]) -> str:
    """Two lines for a person, and one on the speed where it was timed."""
    from patchslim.plan import SPEED
    from patchslim.runs.expected import EXPECTED, TIMING, where

    lines = [
        f"{folder}: {metrics['macs'] / 1e9:.4g} GMACs per image, {metrics['macs_ratio']:.3f} of the host's "
        f"{metrics['host_macs'] / 1e9:.4g}, in {metrics['seconds']:.0f} s",
        f"patches per block: {', '.join(map(str, metrics['patches_per_block']))}",
    ]
    if SPEED in metrics:
        speed = metrics[SPEED]
        lines.append(
            f"predicted: {speed['predicted']:.2f}× as fast as the host, asked for {speed['asked']:g}× ({where(speed)})"
        )
    elif metrics.get(EXPECTED) is not None:
        lines.append(f"expected here: {metrics[EXPECTED]:.2f}× as fast as the host ({where(metrics[TIMING])})")
    return "\n".join(lines)
