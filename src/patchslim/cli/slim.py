"""`patchslim slim`: from a pretrained model and unlabelled images to a run folder with a faster model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from patchslim.cli.common import (
    AsJson,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    ImgSize,
    Model,
    Pretrained,
    ReadoutOption,
    Seed,
    console,
    default_folder,
    note_random,
    note_skipped,
    open_device,
    open_model,
    read_ratios,
    report,
    split_setting,
    workers_for,
)
from patchslim.cli.old import check_names
from patchslim.cli.progress import show_search
from patchslim.data import open_images
from patchslim.folder import SOURCE
from patchslim.hosts import HostInfo, inspect
from patchslim.hosts.weights import weights_fingerprint
from patchslim.methods import DEFAULT, Task, make
from patchslim.plan import SPEED
from patchslim.runs.make import check_runs_folder, make_runs
from patchslim.search import Target
from patchslim.search.cost import check_reachable
from patchslim.timing.device import described

FEW_IMAGES, MANY_IMAGES = 256, 1024  # docs/notebook/decisions.md


def slim(
    model: Model,
    data: Data,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="See `patchslim methods`.")] = DEFAULT,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method; repeat it.")
    ] = None,
    target_macs: Annotated[
        str | None, typer.Option("--target-macs", metavar="R[,R…]", help="MACs to keep, e.g. 0.55; or several runs.")
    ] = None,
    target_speedup: Annotated[
        float | None, typer.Option("--target-speedup", metavar="X", help="Times as fast as now, on this device.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", metavar="E", help="Relative error of what the head reads [0.01].")
    ] = None,
    checkpoint: Checkpoint = None,
    pretrained: Pretrained = False,
    img_size: ImgSize = None,
    readout: ReadoutOption = None,
    images: Annotated[
        int | None, typer.Option("--images", min=1, metavar="K", help="Images to look at [256; some on a GPU: 1024].")
    ] = None,
    memory: Annotated[
        float, typer.Option("--memory", min=0.0, metavar="GIB", help="Bound on cached features.")
    ] = Task.memory_gib,
    batch_size: BatchSize = 32,
    dtype: Annotated[str, typer.Option("--dtype", help="Of --target-speedup: float32, bfloat16, float16.")] = "float32",
    device: Device = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Run folder [runs/MODEL].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a faster model from a pretrained one and a few hundred images. No labels are needed."""
    ratios = read_ratios(target_macs)
    wanted: list[float | None] = [*ratios] or [None]
    targets = [Target(tolerance, ratio, target_speedup, batch_size, dtype) for ratio in wanted]
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
    limit = images or usual_images(chosen, place)
    source = open_images(data, model=network, limit=limit, seed=seed, workers=workers_for(place))
    started = {
        "model": info.name,
        "method": method,
        "settings": asdict(chosen) if is_dataclass(chosen) and not isinstance(chosen, type) else {},
        "target": targets[0].as_dict() | ({"macs": ratios} if len(ratios) > 1 else {}),
        "search": {"seed": seed, "batch_size": batch_size, "memory_gib": memory},
        "weights": weights_fingerprint(network),
        "images": {"count": len(source), "fingerprint": source.fingerprint},
        SOURCE: data,
    }
    if target_speedup is not None:
        started["timed_on"] = described(place)  # times are those of a device
    with show_search(info) as listen:
        task = Task.of(
            network.to(place),
            source,
            targets[0],
            seed=seed,
            batch_size=batch_size,
            memory_gib=memory,
            progress=listen,
        )
        runs = make_runs(task, chosen, folder, started, ratios)
    note_skipped(max(metrics["skipped_images"] for metrics in runs.values()), len(source))
    results = [{"run": str(run)} | metrics for run, metrics in runs.items()]
    text = "\n".join(summary(run, metrics) for run, metrics in runs.items())
    report(results[0] if len(ratios) < 2 else {"sweep": str(folder), "runs": results}, as_json, text)


def usual_images(method: Any, place: torch.device) -> int:
    """Where images choose their own patches, counts found with more of them hold better for others. A GPU has time
    for them."""
    return MANY_IMAGES if getattr(method, "many_images", False) and place.type == "cuda" else FEW_IMAGES


def check_ratios(info: HostInfo, method: Any, ratios: Sequence[float]) -> None:
    """Raise BudgetError for a ratio that the method can't reach; say so when one is more than any plan needs."""
    draft = method.draft(info) if hasattr(method, "draft") else None
    if draft is None:
        return
    most = draft.reachable()[1]
    for ratio in ratios:
        check_reachable(draft, ratio, method.name)
        if ratio > most:
            console.print(f"No plan needs more than {most:.3f} of the MACs: the last block computes only what is read.")


def summary(folder: Path, metrics: Mapping[str, Any]) -> str:
    """Two lines for a person, or three."""
    counts = ", ".join(str(count) for count in metrics["patches_per_block"])
    return (
        f"{folder}: {metrics['macs'] / 1e9:.4g} GMACs per image, {metrics['macs_ratio']:.3f} of the host's "
        f"{metrics['host_macs'] / 1e9:.4g}, in {metrics['seconds']:.0f} s\n"
        f"patches per block: {counts}{predicted(metrics)}"
    )


def predicted(metrics: Mapping[str, Any]) -> str:
    """What a plan for a speed-up says of it."""
    if SPEED not in metrics:
        return ""
    speed = metrics[SPEED]
    return (
        f"\npredicted: {speed['predicted']:.2f}× as fast as the host, asked for {speed['asked']:g}× "
        f"({speed['device']}, batch {speed['batch_size']}, {speed['dtype']}, {speed['mode']})"
    )
