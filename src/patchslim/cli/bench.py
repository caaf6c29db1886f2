"""`patchslim bench`: throughput of a run against its host, both in one run."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from patchslim.cli.common import AsJson, BatchSize, Device, console, open_device, report
from patchslim.errors import PatchslimError
from patchslim.measure import DTYPES, compare
from patchslim.slim import load, load_host


def bench(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
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
    with Progress(SpinnerColumn(), TextColumn("timing"), console=console, transient=True) as progress:
        progress.add_task("timing", total=None)
        result = compare(slim, host, batch_size, dtype, compiled, seconds)
    text = (
        f"{result['throughput']:.1f} images/s against {result['baseline_throughput']:.1f}: {result['speedup']:.2f}×, "
        f"{result['share_of_ideal']:.0%} of the {result['ideal_speedup']:.2f}× that the MACs promise "
        f"(batch {batch_size}, {dtype}, {result['device']}, torch {torch.__version__})"
    )
    report({"run": run} | result, as_json, text)
