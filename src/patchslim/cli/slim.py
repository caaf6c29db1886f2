"""`patchslim slim`: from a pretrained model and unlabelled images to a run folder with a faster model."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

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
    note_skipped,
    open_device,
    open_model,
    report,
    workers_for,
)
from patchslim.cli.progress import show_search
from patchslim.data import ImageSource, open_images
from patchslim.errors import RunError
from patchslim.files import read_json, write_json
from patchslim.hosts import inspect
from patchslim.hosts.weights import weights_fingerprint
from patchslim.macs import count_macs
from patchslim.plan import Removed, SlimPlan
from patchslim.search import SearchConfig, search
from patchslim.search.budget import check_reachable, host_macs
from patchslim.search.config import Score
from patchslim.search.ledger import LEDGER
from patchslim.slim import apply
from patchslim.slim.store import CONFIG, METRICS, PLAN, SEARCH, holds_run, write_run

STARTED, LOG = "started.json", "log.jsonl"


def slim(
    model: Model,
    data: Data,
    checkpoint: Checkpoint = None,
    pretrained: Pretrained = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Run folder [runs/MODEL].")] = None,
    tolerance: Annotated[float | None, typer.Option("--tolerance", help="Error allowed per block [0.01].")] = None,
    target_macs: Annotated[float | None, typer.Option("--target-macs", help="MACs to keep, e.g. 0.6.")] = None,
    score: Annotated[Score, typer.Option("--score", help="What ranks the patches.")] = "impact",
    select: Annotated[str, typer.Option("--select", help="static: the same patches for every image.")] = "static",
    removed: Annotated[
        Removed, typer.Option("--removed", help="Removed patches: dropped, or carried along as keys and values.")
    ] = "drop",
    images: Annotated[int, typer.Option("--images", min=1, help="Calibration images to use.")] = 256,
    step: Annotated[int, typer.Option("--step", min=1, help="Patches added at a time.")] = 10,
    tune_epochs: Annotated[int, typer.Option("--tune-epochs", min=0, help="Epochs of block tuning; 0: none.")] = 3,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Of block tuning.")] = 5e-5,
    cache_gib: Annotated[float, typer.Option("--cache-gib", help="Memory for cached features, in GiB.")] = 2.0,
    batch_size: BatchSize = 32,
    img_size: ImgSize = None,
    device: Device = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the image sample and of random scores.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a faster model from a pretrained one and a few hundred images. No labels are needed."""
    if select != "static":
        raise RunError(f"--select {select} is not available in this version; static is.")
    config = SearchConfig(
        tolerance=tolerance,
        target_macs=target_macs,
        score=score,
        removed=removed,
        step=step,
        tune_epochs=tune_epochs,
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
        check_reachable(info, config.removed, target_macs)
    if checkpoint is None and not pretrained:
        console.print("No --checkpoint and no --pretrained: slimming random weights.")
    source = open_images(data, model=network, limit=images, seed=seed, workers=workers_for(place))
    started = {
        "model": info.name,
        "settings": config.as_dict(),
        "weights": weights_fingerprint(network),
        "images": {"count": len(source), "fingerprint": source.fingerprint},
    }
    metrics = run_slim(network.to(place), source, config, folder, started)
    report({"run": str(folder)} | metrics, as_json, summary(folder, metrics))


def check_folder(folder: Path, resume: bool) -> None:
    """Raise RunError unless a run may be written, or gone on with, in this folder."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another run folder with --out.")
    if resume or not folder.exists():
        return
    if holds_run(folder):
        raise RunError(f"{folder} already holds a run; go on with --resume, or choose another folder with --out.")
    if any(folder.iterdir()):
        raise RunError(f"{folder} is not empty; choose another run folder with --out.")


def run_slim(
    network: nn.Module, source: ImageSource, config: SearchConfig, folder: Path, started: dict[str, Any]
) -> dict[str, Any]:
    """Search, apply, and write the run; returns its metrics. A finished run of the same settings is left alone."""
    state = folder / SEARCH
    check_same(folder, started)
    if (folder / PLAN).exists():
        return read_json(folder / METRICS, RunError, "run's metrics")
    fresh = not folder.exists()
    state.mkdir(parents=True, exist_ok=True)
    write_json(state / STARTED, started)
    start = time.monotonic()
    try:
        with show_search(inspect(network), folder / LOG) as listen:
            plan, tuned = search(network, source, config, checkpoint=state, listen=listen)
    except BaseException:
        if fresh and not (state / LEDGER).exists():
            shutil.rmtree(folder)  # nothing found yet: leave nothing behind
        raise
    note_skipped(source.skipped, len(source))
    result = apply(network, plan, tuned)
    metrics = measure_plan(network, plan) | {
        "seconds": round(time.monotonic() - start, 1),
        "peak_memory_gib": round(peak_memory_gib(), 2),
        "skipped_images": source.skipped,
    }
    write_run(result, folder, started, metrics)
    shutil.rmtree(state)
    return metrics


def check_same(folder: Path, started: dict[str, Any]) -> None:
    """Raise RunError when the folder's run was started with another model, other settings or other images."""
    path = folder / SEARCH / STARTED if (folder / SEARCH).exists() else folder / CONFIG
    if not path.exists():
        return
    before = read_json(path, RunError, "run's settings")
    for name, value in started.items():
        if before.get(name) != value:
            raise RunError(
                f"{folder} was started with another {name} ({difference(before.get(name), value)}); "
                "resume with the same, or choose another folder with --out."
            )


def difference(before: Any, now: Any) -> str:
    """The first thing two settings differ in."""
    if isinstance(before, dict) and isinstance(now, dict):
        name = next(key for key in now if before.get(key) != now[key])
        return f"{name} {difference(before.get(name), now[name])}"
    return f"{before}, now {now}"


def measure_plan(network: nn.Module, plan: SlimPlan) -> dict[str, Any]:
    """MACs and tokens of a plan."""
    info = inspect(network)
    macs = count_macs(network, plan)
    return {
        "macs": macs,
        "macs_ratio": macs / host_macs(info),
        "host_macs": host_macs(info),
        "patches_per_block": list(plan.counts),
        "tolerance": plan.provenance["tolerance"],
        "errors": plan.provenance["errors"],
    }


def peak_memory_gib() -> float:
    """The most memory this process has held; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0.0
    import resource

    scale = 2**30 if sys.platform == "darwin" else 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def summary(folder: Path, metrics: dict[str, Any]) -> str:
    """Two lines for a person."""
    counts = ", ".join(str(count) for count in metrics["patches_per_block"])
    return (
        f"{folder}: {metrics['macs'] / 1e9:.4g} GMACs per image, {metrics['macs_ratio']:.3f} of the host's "
        f"{metrics['host_macs'] / 1e9:.4g}, in {metrics['seconds']:.0f} s\n"
        f"patches per block: {counts}"
    )
