"""`patchslim slim`: from a pretrained model and unlabelled images to a run folder with a faster model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from patchslim.search.config import Distance, Score
from patchslim.timing.place import place_of

from patchslim.cli.common import (
    AsJson,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    ImgSize,
    Model,
    Pretrained,
    console,
    note_random,
    note_skipped,
    open_device,
    open_model,
    report,
    workers_for,
)
from patchslim.cli.progress import show_search
from patchslim.data import open_images
from patchslim.errors import BudgetError
from patchslim.hosts import HostInfo, inspect
from patchslim.hosts.hf_open import ON_HUB, is_hf_name
from patchslim.hosts.weights import weights_fingerprint
from patchslim.plan import SPEED, Groups, Mode, PredictorKind, Removed, Select
from patchslim.runs import SOURCE, check_folder, check_sweep_folder, make_run, make_sweep, run_name
from patchslim.search import SearchConfig
from patchslim.search.budget import check_reachable, reachable

FEW_IMAGES, MANY_IMAGES = 256, 1024  # docs/decisions.md


def slim(
    model: Model,
    data: Data,
    checkpoint: Checkpoint = None,
    pretrained: Pretrained = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Run folder [runs/MODEL].")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            help="Relative error allowed: of what the head reads, or per block with the paper's search [0.01].",
        ),
    ] = None,
    target_macs: Annotated[
        str | None,
        typer.Option("--target-macs", metavar="R[,R…]", help="MACs to keep, e.g. 0.6; several give a run each."),
    ] = None,
    target_speedup: Annotated[
        float | None,
        typer.Option(
            "--target-speedup",
            metavar="X",
            help="How many times as fast as the model is now, on this device, e.g. 1.6: blocks are timed here.",
        ),
    ] = None,
    speed_batch_size: Annotated[
        int, typer.Option("--speed-batch-size", min=1, max=2**16, help="Of --target-speedup: images at a time.")
    ] = 32,
    speed_dtype: Annotated[
        str, typer.Option("--speed-dtype", help="Of --target-speedup: float32, bfloat16 or float16.")
    ] = "float32",
    speed_mode: Annotated[
        str,
        typer.Option(
            "--speed-mode",
            help="Of --target-speedup: how models run, as in bench: eager, compiled, graph, compiled-graph, or auto.",
        ),
    ] = "auto",
    score: Annotated[
        Score | None,
        typer.Option("--score", help="What ranks the patches [static that merge: coverage, else effect]."),
    ] = None,
    select: Annotated[
        Select,
        typer.Option("--select", help="Which patches stay: static, the same for all images; or by the image's own."),
    ] = "static",
    removed: Annotated[
        Removed | None,
        typer.Option("--removed", help="What becomes of the others [merge; static with another score: drop]."),
    ] = None,
    groups: Annotated[
        Groups | None,
        typer.Option(
            "--groups", help="Of static that merge: which stay is alike for all images, what joins what is not [own]."
        ),
    ] = None,
    mode: Annotated[
        Mode, typer.Option("--mode", help="Of predicted: a fixed number per block, or a threshold.")
    ] = "top-k",
    predictor: Annotated[
        PredictorKind | None,
        typer.Option("--predictor", help="Of predicted: the module G [context; with a threshold: mlp]."),
    ] = None,
    distance: Annotated[
        Distance | None,
        typer.Option("--distance", help="Of matched: by what a difference does to the output, or by keys [effect]."),
    ] = None,
    choosing_blocks: Annotated[
        int | None,
        typer.Option(
            "--choosing-blocks",
            min=1,
            help="Where images choose or group: at most so many blocks do, which small batches on a GPU like [any].",
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option("--images", min=1, help="Calibration images to use [256; matched or predicted on a GPU: 1024]."),
    ] = None,
    step: Annotated[
        int, typer.Option("--step", min=1, help="Patches added at a time, with a score other than effect.")
    ] = 10,
    tune_epochs: Annotated[
        int | None,
        typer.Option(
            "--tune-epochs",
            min=0,
            help="Epochs of block tuning, as the paper does [3, with a score other than effect].",
        ),
    ] = None,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Of block tuning.")] = 5e-5,
    cache_gib: Annotated[float, typer.Option("--cache-gib", help="Memory for cached features, in GiB.")] = 2.0,
    batch_size: BatchSize = 32,
    img_size: ImgSize = None,
    device: Device = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**31 - 1, help="Of the image sample and of random scores.")
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a faster model from a pretrained one and a few hundred images. No labels are needed."""
    ratios = read_ratios(target_macs)
    config = SearchConfig(
        tolerance=tolerance,
        target_macs=min(ratios, default=None),
        target_speedup=target_speedup,
        speed_batch_size=speed_batch_size,
        speed_dtype=speed_dtype,
        speed_mode=speed_mode,
        score=score,
        select=select,
        removed=removed,  # type: ignore[arg-type]  # None is resolved
        groups=groups,
        mode=mode,
        predictor=predictor,  # type: ignore[arg-type]  # None is resolved
        distance=distance,
        choosing_blocks=choosing_blocks,
        step=step,
        tune_epochs=tune_epochs,  # type: ignore[arg-type]  # None is resolved
        learning_rate=learning_rate,
        batch_size=batch_size,
        cache_gib=cache_gib,
        seed=seed,
    )
    folder = out or default_folder(model)
    (check_folder if len(ratios) < 2 else check_sweep_folder)(folder, resume)
    place = open_device(device)
    torch.manual_seed(seed)  # random weights, where nothing better is given, are the same on --resume
    network = open_model(model, checkpoint, pretrained, img_size)
    info = inspect(network)
    for ratio in ratios:
        check_reachable(info, config, ratio)
        note_generous(info, config, ratio)
    note_random([model], checkpoint, pretrained)
    limit = images or usual_images(config.select, place)
    source = open_images(data, model=network, limit=limit, seed=seed, workers=workers_for(place))
    started = {
        "model": info.name,
        "settings": config.as_dict(),
        "weights": weights_fingerprint(network),
        "images": {"count": len(source), "fingerprint": source.fingerprint},
        SOURCE: data,
    }
    if config.target_speedup is not None:
        started["timed_on"] = place_of(place)  # times are those of a device
    with show_search(info) as listen:
        if len(ratios) > 1:
            about = started | {"ratios": ratios}
            found = make_sweep(network.to(place), source, config, ratios, folder, about, listen)
            runs = {folder / run_name(ratio): metrics for ratio, metrics in found.items()}
        else:
            runs = {folder: make_run(network.to(place), source, config, folder, started, listen)}
    note_skipped(max(metrics["skipped_images"] for metrics in runs.values()), len(source))
    results = [{"run": str(run)} | metrics for run, metrics in runs.items()]
    text = "\n".join(summary(run, metrics) for run, metrics in runs.items())
    report(results[0] if len(ratios) < 2 else {"sweep": str(folder), "runs": results}, as_json, text)


def usual_images(select: Select, place: torch.device) -> int:
    """Where images choose their own patches, counts found with more of them hold better for others; static patches
    gain nothing. A GPU has time for them."""
    return MANY_IMAGES if select != "static" and place.type == "cuda" else FEW_IMAGES


def default_folder(model: str) -> Path:
    """runs/MODEL; of a folder or a name on the hub, the last word of it."""
    return Path("runs") / (Path(model.removeprefix(ON_HUB)).resolve().name if is_hf_name(model) else model)


def read_ratios(text: str | None) -> list[float]:
    """The MAC ratios asked for, each once, the largest first."""
    try:
        return sorted({float(word) for word in text.split(",")}, reverse=True) if text is not None else []
    except ValueError:
        raise BudgetError(f"{text} is not a MAC ratio, nor several with commas between; try 0.6 or 0.7,0.55.") from None


def note_generous(info: HostInfo, config: SearchConfig, target: float) -> None:
    """Say so when the ratio asked for is more than any plan needs."""
    _, most = reachable(info, config)
    if target > most:
        console.print(f"No plan needs more than {most:.3f} of the MACs: the last block computes only what is read.")


def summary(folder: Path, metrics: dict[str, Any]) -> str:
    """Two lines for a person, or three."""
    counts = ", ".join(str(count) for count in metrics["patches_per_block"])
    return (
        f"{folder}: {metrics['macs'] / 1e9:.4g} GMACs per image, {metrics['macs_ratio']:.3f} of the host's "
        f"{metrics['host_macs'] / 1e9:.4g}, in {metrics['seconds']:.0f} s\n"
        f"patches per block: {counts}{predicted(metrics)}"
    )


def predicted(metrics: dict[str, Any]) -> str:
    """What a plan for a speed-up says of it."""
    if SPEED not in metrics:
        return ""
    speed = metrics[SPEED]
    return (
        f"\npredicted: {speed['predicted']:.2f}× as fast as the host, asked for {speed['asked']:g}× "
        f"({speed['device']}, batch {speed['batch_size']}, {speed['dtype']}, {speed['mode']})"
    )
