"""`patchslim bench`: throughput of a run against its host, both in one run."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn
from torch import Tensor

from patchslim.cli.common import AsJson, BatchSize, Device, console, open_device, report
from patchslim.data import open_images
from patchslim.errors import PatchslimError
from patchslim.measure import DTYPES, compare
from patchslim.slim import load, load_host


def bench(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="SRC", help="Real images to time on [noise]; a threshold needs them."),
    ] = None,
    batch_size: BatchSize = 32,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16 (autocast).")] = "float32",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile both models with torch.compile.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time to spend on each model.")] = 5.0,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Time the slim model and its host side by side, and compare with what the MACs promise."""
    if dtype not in DTYPES:
        raise PatchslimError(f"There is no dtype {dtype}; choose one of {', '.join(DTYPES)}.")
    place = open_device(device)
    slim, host = load(run).to(place), load_host(run).to(place)
    batch = open_batch(slim, data, batch_size, compiled)
    with Progress(SpinnerColumn(), TextColumn("timing"), console=console, transient=True) as progress:
        progress.add_task("timing", total=None)
        result = compare(slim, host, batch.to(place), dtype, compiled, seconds)
    text = (
        f"{result['throughput']:.1f} images/s against {result['baseline_throughput']:.1f}: {result['speedup']:.2f}×, "
        f"{result['share_of_ideal']:.0%} of the {result['ideal_speedup']:.2f}× that the MACs promise "
        f"(batch {batch_size}, {dtype}, {result['device']}, torch {torch.__version__})"
    )
    report({"run": run, "data": data} | result, as_json, text)


def open_batch(slim: Any, data: str | None, batch_size: int, compiled: bool) -> Tensor:
    """The images to time on: real ones, repeated where there are too few; or noise, where the time is the same."""
    if slim.plan.mode == "threshold":
        if compiled:
            raise PatchslimError("A run with thresholds has batches of many shapes and can't be compiled whole.")
        if data is None:
            raise PatchslimError(
                "How much a run with thresholds computes depends on the images; give some with --data."
            )
    if data is None:
        return torch.randn(batch_size, slim.host_info.channels, *slim.host_info.image_size)
    images = open_images(data, model=slim, limit=batch_size, split="test")
    pixels = torch.cat([batch for batch, _ in images.batches(batch_size)])
    return pixels.repeat(-(-batch_size // len(pixels)), 1, 1, 1)[:batch_size]
