"""`python -m benchmarks paper …`: the paper's tables and throughput."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.inputs import Out, Where
from benchmarks.paper.harness import Harness
from benchmarks.paper.picture import draw
from benchmarks.paper.published import TABLES, Cell, cells_of, models_of
from benchmarks.paper.text import pages
from benchmarks.rows import RESULTS, Row
from patchslim.cli.opening import open_device
from patchslim.cli.options import check_shares, read_ratios
from patchslim.errors import CheckpointError, PatchslimError
from patchslim.measure import SpeedConfig
from patchslim.timing.modes import modes_for

Names = Annotated[str | None, typer.Option("--models", metavar="A,B,…", help="Some models of the table [all].")]
Size = Annotated[int | None, typer.Option("--bench-batch-size", help="Of timing [256 on a GPU, else 16].")]
Dtype = Annotated[str | None, typer.Option("--bench-dtype", help="Of timing [bfloat16 on a GPU, else float32].")]
Mode = Annotated[str, typer.Option("--mode", help="eager, compiled, graph, compiled-graph; auto: all that go.")]
Seconds = Annotated[float, typer.Option("--seconds", help="Of timing, for each row and mode.")]
TABLE3 = "deit_tiny_patch16_224,deit_small_patch16_224"  # the paper has the second one only


def tables(
    context: typer.Context,
    weights: Annotated[
        list[str] | None, typer.Option("--weights", metavar="MODEL=FILE", help="Of one model; repeat it.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Images to choose by; labels are not read.")] = None,
    val: Annotated[str | None, typer.Option("--val", help="Labelled images to measure top-1 on.")] = None,
    train: Annotated[
        str | None, typer.Option("--train", help="Images to recover with, without labels [--data].")
    ] = None,
    models: Names = None,
    also: Annotated[
        str | None, typer.Option("--also", metavar="R[,R…]", help="Every method at these ratios too.")
    ] = None,
    recover: Annotated[int, typer.Option("--recover", metavar="EPOCHS", help="Of distillation, for every row.")] = 0,
    images: Annotated[int, typer.Option("--images", help="To choose by, a sample of --data.")] = 256,
    limit: Annotated[int | None, typer.Option("--limit", help="Measure on a sample of --val.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images at a time, of searches.")] = 32,
    seed: int = 0,
    bench_batch_size: Size = None,
    bench_dtype: Dtype = None,
    mode: Mode = "auto",
    seconds: Seconds = 1.0,
    device: Where = None,
    resume: Annotated[bool, typer.Option("--resume", help="Measure only what comparisons/ lacks.")] = False,
    out: Out = RESULTS,
) -> None:
    """Measure a table of the paper, model by model, and print it beside what is published."""
    table = str(context.info_name)
    ratios = read_ratios(also)
    place, speed = timing(device, bench_batch_size, bench_dtype, mode, seconds, ratios)
    harness = Harness(
        f"paper-{table}",
        place,
        speed,
        weights=dict(map(weight, weights or [])),
        data=data,
        val=val,
        train=train,
        images=images,
        limit=limit,
        recover=recover,
        batch_size=batch_size,
        seed=seed,
        resume=resume,
        out=out,
    )
    rows: list[Row] = []
    for model in chosen(models or (TABLE3 if table == "table3" else None), models_of(table), table != "table3"):
        rows += harness.measure(model, cells_of(table, model, ratios))
        if table != "table2" and find_spec("matplotlib") is not None:
            draw(table, rows, out / "pictures" / f"paper_{table}.png")
    print(pages(harness.question, rows))


def throughput(
    models: Names = None,
    bench_batch_size: Size = None,
    bench_dtype: Dtype = None,
    mode: Mode = "auto",
    seconds: Seconds = 0.5,
    warm: Annotated[bool, typer.Option("--warm", help="Only fill the compiler's cache.")] = False,
    device: Where = None,
    out: Out = RESULTS,
) -> None:
    """Time all rows of Tables 1 and 2 with random weights, each model's in turns."""
    place, speed = timing(device, bench_batch_size, bench_dtype, mode, seconds)
    harness = Harness("paper-throughput", place, speed, out=out)
    rows: list[Row] = []
    for model in chosen(models, [*models_of("table1"), *models_of("table2")]):
        rows += harness.measure(model, timed_cells(model), warm)
    if not warm:
        print(pages(harness.question, rows))


def timed_cells(model: str) -> list[Cell]:
    """The cells of both tables; with random weights `ps` and `drop` are one network, so `drop` is left out."""
    cells = dict.fromkeys((str(cell.chosen), cell.ratio) for table in TABLES[:2] for cell in cells_of(table, model))
    known = {(str(cell.chosen), cell.ratio): cell for table in TABLES[:2] for cell in cells_of(table, model)}
    return [known[key] for key in cells if known[key].chosen.name != "drop"]


def timing(
    device: str | None,
    size: int | None,
    dtype: str | None,
    mode: str,
    seconds: float,
    ratios: list[float] | None = None,
) -> tuple[torch.device, SpeedConfig]:
    """The device and how it is timed there; what makes no sense is refused before any work."""
    place = open_device(device)
    gpu = place.type == "cuda"
    dtype = dtype or ("bfloat16" if gpu else "float32")
    check_shares(ratios or [])
    modes_for([mode], place, packed=False)
    return place, SpeedConfig(size or (256 if gpu else 16), dtype, (mode,), seconds)


def weight(word: str) -> tuple[str, Path]:
    """`deit_tiny_patch16_224=F` → the model, the file."""
    model, sign, path = word.partition("=")
    if not sign or not path:
        raise CheckpointError(f"Weights are given as MODEL=FILE, and {word} is not.")
    return model, Path(path)


def chosen(words: str | None, known: list[str], only_known: bool = True) -> list[str]:
    """The models asked for, each once."""
    found = list(dict.fromkeys(word.strip() for word in words.split(",")) if words else dict.fromkeys(known))
    strange = [name for name in found if name not in known]
    if strange and only_known:
        raise PatchslimError(f"The table has no {strange[0]}; choose from {', '.join(known)}.")
    return found
