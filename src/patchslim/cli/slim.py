"""`patchslim slim`: from a pretrained model and unlabelled images to a run folder with a faster model."""

from __future__ import annotations

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
from patchslim.hosts import HostInfo, inspect
from patchslim.hosts.weights import weights_fingerprint
from patchslim.plan import Mode, PredictorKind, Removed, Select
from patchslim.runs import SOURCE, check_folder, make_run
from patchslim.search import SearchConfig
from patchslim.search.budget import check_reachable, reachable
from patchslim.search.config import Score


def slim(
    model: Model,
    data: Data,
    checkpoint: Checkpoint = None,
    pretrained: Pretrained = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Run folder [runs/MODEL].")] = None,
    tolerance: Annotated[float | None, typer.Option("--tolerance", help="Error allowed per block [0.01].")] = None,
    target_macs: Annotated[float | None, typer.Option("--target-macs", help="MACs to keep, e.g. 0.6.")] = None,
    score: Annotated[Score | None, typer.Option("--score", help="What ranks patches [effect; carry: impact].")] = None,
    select: Annotated[
        Select,
        typer.Option("--select", help="Which patches stay: static, the same for all images; or by the image's own."),
    ] = "static",
    removed: Annotated[
        Removed | None, typer.Option("--removed", help="What becomes of the others [static: drop, else merge].")
    ] = None,
    mode: Annotated[
        Mode, typer.Option("--mode", help="Of predicted: a fixed number per block, or a threshold.")
    ] = "top-k",
    predictor: Annotated[PredictorKind, typer.Option("--predictor", help="Of predicted: the module G.")] = "context",
    images: Annotated[int, typer.Option("--images", min=1, help="Calibration images to use.")] = 256,
    step: Annotated[int, typer.Option("--step", min=1, help="Patches added at a time.")] = 10,
    tune_epochs: Annotated[
        int | None,
        typer.Option("--tune-epochs", min=0, help="Epochs of block tuning [3 for carry and other scores than effect]."),
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
    config = SearchConfig(
        tolerance=tolerance,
        target_macs=target_macs,
        score=score,
        select=select,
        removed=removed,  # type: ignore[arg-type]  # None is resolved
        mode=mode,
        predictor=predictor,
        step=step,
        tune_epochs=tune_epochs,  # type: ignore[arg-type]  # None is resolved
        learning_rate=learning_rate,
        batch_size=batch_size,
        cache_gib=cache_gib,
        seed=seed,
    )
    folder = out or Path("runs") / model
    check_folder(folder, resume)
    place = open_device(device)
    torch.manual_seed(seed)  # random weights, where nothing better is given, are the same on --resume
    network = open_model(model, checkpoint, pretrained, img_size)
    info = inspect(network)
    if target_macs is not None:
        check_reachable(info, config.removed, target_macs, config.select, config.predictor)
        note_generous(info, config, target_macs)
    note_random(checkpoint, pretrained)
    source = open_images(data, model=network, limit=images, seed=seed, workers=workers_for(place))
    started = {
        "model": info.name,
        "settings": config.as_dict(),
        "weights": weights_fingerprint(network),
        "images": {"count": len(source), "fingerprint": source.fingerprint},
        SOURCE: data,
    }
    with show_search(info) as listen:
        metrics = make_run(network.to(place), source, config, folder, started, listen)
    note_skipped(metrics["skipped_images"], len(source))
    report({"run": str(folder)} | metrics, as_json, summary(folder, metrics))


def note_generous(info: HostInfo, config: SearchConfig, target: float) -> None:
    """Say so when the ratio asked for is more than any plan needs."""
    _, most = reachable(info, config.removed, config.select, config.predictor)
    if target > most:
        console.print(f"No plan needs more than {most:.3f} of the MACs: the last block computes only what is read.")


def summary(folder: Path, metrics: dict[str, Any]) -> str:
    """Two lines for a person."""
    counts = ", ".join(str(count) for count in metrics["patches_per_block"])
    return (
        f"{folder}: {metrics['macs'] / 1e9:.4g} GMACs per image, {metrics['macs_ratio']:.3f} of the host's "
        f"{metrics['host_macs'] / 1e9:.4g}, in {metrics['seconds']:.0f} s\n"
        f"patches per block: {counts}"
    )
