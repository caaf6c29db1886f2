"""`patchslim compare`: one table of methods by MAC ratios, on one model and one set of images."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from patchslim.cli.common import (
    AsJson,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    ImgSize,
    Limit,
    Model,
    Pretrained,
    ReadoutOption,
    Seed,
    console,
    default_folder,
    note_random,
    open_device,
    open_model,
    read_ratios,
    report,
    split_setting,
    workers_for,
)
from patchslim.cli.old import check_names
from patchslim.cli.progress import show_comparison
from patchslim.data import open_images
from patchslim.errors import BudgetError, MethodError, PatchslimError
from patchslim.files import write_text
from patchslim.measure import DTYPES, CompareConfig, SpeedConfig, compare
from patchslim.measure.accuracy import check_labelled
from patchslim.measure.store import RESULT, check_place
from patchslim.methods import make
from patchslim.methods import names as all_methods
from patchslim.recover import RecoverConfig
from patchslim.report import draw_comparison, markdown
from patchslim.report.comparison import about, lines_of
from patchslim.timing.modes import modes_for

TABLE, FIGURE = "table.md", "figure.png"


def compare_methods(
    model: Model,
    data: Data,
    val: Annotated[str, typer.Option("--val", metavar="SRC", help="Labelled images to measure top-1 on.")],
    methods: Annotated[str, typer.Option("--methods", metavar="A,B,…", help="Names with commas between, or all.")],
    target_macs: Annotated[str, typer.Option("--target-macs", metavar="R[,R…]", help="MACs to keep, e.g. 0.7,0.55.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME.KEY=VALUE", help="A setting of a method, e.g. merge.blocks=2; repeat it."),
    ] = None,
    checkpoint: Checkpoint = None,
    pretrained: Pretrained = False,
    recover: Annotated[
        int, typer.Option("--recover", metavar="EPOCHS", min=0, help="Epochs of distillation for every row.")
    ] = 0,
    images: Annotated[int, typer.Option("--images", min=1, help="Calibration images, a sample of --data.")] = 256,
    train_images: Annotated[
        int | None, typer.Option("--train-images", min=2, help="Images to recover with, a sample of --data [all].")
    ] = None,
    limit: Limit = None,
    batch_size: BatchSize = 32,
    bench_batch_size: Annotated[
        int, typer.Option("--bench-batch-size", min=1, max=2**16, help="Images at a time when timing.")
    ] = SpeedConfig.batch_size,
    dtype: Annotated[str, typer.Option("--dtype", help=f"Of timing: {', '.join(DTYPES)}.")] = "float32",
    mode: Annotated[
        str, typer.Option("--mode", help="Of timing: eager, compiled, graph, compiled-graph or auto, the fastest.")
    ] = "auto",
    seconds: Annotated[float, typer.Option("--seconds", help="Of timing, for each model.")] = SpeedConfig.seconds,
    img_size: ImgSize = None,
    readout: ReadoutOption = None,
    device: Device = None,
    seed: Seed = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Measure only what is not there yet.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder [comparisons/MODEL].")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare ways to slim a model at equal MACs: top-1 before and after one and the same recovery, and throughput."""
    chosen, ratios = chosen_methods(methods, settings or []), read_ratios(target_macs)
    check_settings(ratios, dtype, seconds)
    config = CompareConfig(
        recover=RecoverConfig(epochs=recover, block_epochs=0, seed=seed) if recover else None,
        speed=SpeedConfig(bench_batch_size, dtype, (mode,), seconds),
        batch_size=batch_size,
        eval_batch_size=max(batch_size, 64),
        seed=seed,
    )
    folder = out or default_folder("comparisons", model)
    check_place(folder, resume)
    place = open_device(device)
    modes_for((mode,), place, packed=False)  # refuses a mode that is none, before any work
    torch.manual_seed(seed)  # random weights, where nothing better is given, are the same on --resume
    network = open_model(model, checkpoint, pretrained, img_size, readout)
    note_random([model], checkpoint, pretrained)
    workers = workers_for(place)
    calibration = open_images(data, model=network, limit=images, seed=seed, workers=workers)
    training = open_images(data, model=network, limit=train_images, seed=seed, workers=workers)
    judged = open_images(val, model=network, limit=limit, split="test", workers=workers)
    check_labelled(judged)
    with show_comparison() as listen:
        table = compare(
            network.to(place),
            calibration,
            judged,
            chosen,
            ratios,
            config,
            train=training,
            folder=folder,
            resume=resume,
            listen=listen,
        )
    files = write_files(table, folder)
    report(table | {"files": files}, as_json, f"{text_of(table)}\nsaved in {', '.join(files)}")


def chosen_methods(names: str, settings: Sequence[str]) -> list[Any]:
    """The methods asked for, each once, with their settings; MethodError for names and settings that are none."""
    words = [word.strip() for word in names.split(",") if word.strip()]
    asked = list(dict.fromkeys(name for word in words for name in (all_methods() if word == "all" else [word])))
    if not asked:
        raise MethodError("No method is named; give some with --methods merge,drop, or all.")
    check_names(asked)
    own: dict[str, dict[str, str]] = {name: {} for name in asked}
    for text in settings:
        key, value = split_setting(text)
        name, dot, setting = key.partition(".")
        if not dot or name not in own:
            raise MethodError(f"--set takes NAME.KEY=VALUE with one of {', '.join(asked)} for NAME, and not {text!r}.")
        own[name][setting] = value
    return [make(name, given) for name, given in own.items()]


def check_settings(ratios: list[float], dtype: str, seconds: float) -> None:
    """Raise PatchslimError for numbers that make no sense, before anything is opened."""
    for ratio in ratios:
        if not 0 < ratio < 1:
            raise BudgetError(f"The MAC ratio has to lie between 0 and 1, not at {ratio:g}; try 0.6.")
    if dtype not in DTYPES:
        raise PatchslimError(f"There is no dtype {dtype}; choose from {', '.join(DTYPES)}.")
    if not 0 < seconds < float("inf"):
        raise PatchslimError(f"The seconds to spend have to be more than 0, and {seconds} is not.")


def write_files(table: Mapping[str, Any], folder: Path) -> list[str]:
    """The table as Markdown, and as a figure where matplotlib is there; names of all files."""
    write_text(folder / TABLE, markdown(table))
    files = [folder / RESULT, folder / TABLE]
    if find_spec("matplotlib") is None:
        console.print("No figure: it needs matplotlib, pip install 'patchslim[viz]'.")
    else:
        draw_comparison(table, folder / FIGURE)
        files.append(folder / FIGURE)
    return [str(path) for path in files]


def text_of(table: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    names, rows, notes = lines_of(table)
    shown = Table(title=table["model"], caption=about(table), box=None, pad_edge=False)
    for number, name in enumerate(names):
        shown.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for words in rows:
        shown.add_row(*words)
    page = io.StringIO()
    width = sum(max(len(words[column]) for words in [names, *rows]) + 2 for column in range(len(names)))
    Console(file=page, width=max(width, 80)).print(shown)
    return "\n".join([page.getvalue().rstrip(), *notes])
