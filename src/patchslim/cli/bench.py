"""`patchslim bench`: throughput of a run against its host, both in one run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from patchslim.cli.bench_text import notes, text_of
from patchslim.cli.common import AsJson, Device, RunFolder, SomeData, console, open_device, report, shown
from patchslim.data import open_images
from patchslim.errors import PatchslimError, first_words
from patchslim.files import write_json
from patchslim.measure import BenchConfig, device_name
from patchslim.measure import bench as measure
from patchslim.measure.bench import Forecast, by_dtype, forecast
from patchslim.plan import SlimPlan
from patchslim.runs.store import PLAN, load, load_host
from patchslim.timing.memory import out_of_memory

FOLDER = "bench"  # in the run's


def bench(
    run: RunFolder,
    data: SomeData = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size",
            metavar="B[,B…]",
            help="Images at a time; several are timed one by one [32, or what the run was made for].",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="D[,D…]",
            help="float32, bfloat16, float16, or several of them [float32, or what the run was made for].",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="M[,M…]",
            help="eager, compiled, graph (CUDA graph), compiled-graph; auto is all of them on a GPU, else eager. "
            "Each model is told by its best [auto, or what the run was made for].",
        ),
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Also with torch.compile: one more --mode.")] = False,
    autocast: Annotated[
        bool, typer.Option("--autocast", help="Leave the weights in float32 and autocast to the dtype.")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.01, help="Time to spend on each model in each mode.")
    ] = 5.0,
    quantize: Annotated[
        str | None,
        typer.Option("--quantize", metavar="W", help="Also with linear layers in int8 or float8 (float8 on a GPU)."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also show where the time goes, per block.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="F", help="Results go here [RUN/bench/DEVICE_torchV_DTYPE[_W].json]."),
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Time the slim model and its host side by side, and compare with what the MACs and the plan promise."""
    place = open_device(device)
    own = forecast_of(run, place)
    usual = own.modes if own else ["auto"]
    config = BenchConfig(
        batch_sizes=_numbers(batch_size) if batch_size is not None else [own.batch_size if own else 32],
        dtypes=_words(dtype) if dtype is not None else [own.dtype if own else "float32"],
        modes=[*(_words(mode) if mode is not None else usual), *(["compiled"] if compiled else [])],
        seconds=seconds,
        autocast=autocast,
        profile=profile,
        quantise=quantize,
    )
    try:
        slim, host = load(run).to(place), load_host(run).to(place)
        check_place(run / FOLDER / "results.json" if out is None else out)
        images = None if data is None else open_pixels(slim, data, max(config.batch_sizes))
        with shown("preparing") as move:
            found = measure(slim, host, config, images=images, tell=lambda what: move(description=what))
    except Exception as error:
        if isinstance(error, PatchslimError) or not out_of_memory(error):
            raise
        raise PatchslimError(f"There is not enough memory for the models ({first_words(error)}); free some.") from None
    result = {"run": str(run), "data": data} | found
    files = save(result, run, out)
    for note in notes(result):
        console.print(note, highlight=False)
    report(result | {"files": files}, as_json, text_of(result, files))


def forecast_of(run: Path, place: torch.device) -> Forecast | None:
    """What the plan of a run predicts of its speed, if it was made for a speed-up on this device."""
    path = run / PLAN
    found = forecast(SlimPlan.load(path)) if path.exists() else None
    return found if found is not None and found.device == device_name(place) else None


def open_pixels(slim: Any, data: str, count: int) -> Tensor:
    """Up to `count` real images: (K, C, H, W)."""
    images = open_images(data, model=slim, limit=count, split="test")
    return next(batch for batch, _ in images.batches(count))


def check_place(path: Path) -> None:
    """Raise PatchslimError before anything is timed when the results could not be written."""
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise PatchslimError(f"The results can't be written to {path}; choose another file with --out.")


def save(result: dict[str, Any], run: Path, out: Path | None) -> list[str]:
    """Write the results, a file for each dtype or all in the one asked for; the files' names."""
    files = {out: result} if out is not None else {run / FOLDER / name: own for name, own in by_dtype(result).items()}
    for path, own in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, own)
    return [str(path) for path in files]


def _words(text: str) -> list[str]:
    """`a,b` → a, b."""
    return [word.strip() for word in text.split(",")]


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise PatchslimError(f"--batch-size takes whole numbers such as 1,16,256, and {text!r} is not that.") from None
