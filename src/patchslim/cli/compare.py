"""`patchslim compare`: one table of methods by MAC ratios, on one model and one set of images."""

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from typer import Context, Option

from patchslim.cli import options
from patchslim.cli.old import check_names
from patchslim.cli.options import read_ratios, split_setting
from patchslim.cli.terminal import console, report, show_comparison, table_lines
from patchslim.errors import MethodError
from patchslim.files import write_text

TABLE, FIGURE = "table.md", "figure.png"


def compare_methods(
    context: Context,
    model: options.Model,
    data: options.Data,
    val: Annotated[str, Option(metavar="SRC", help="Labelled images to measure top-1 on.")],
    methods: Annotated[str, Option(metavar="A,B,…", help="Names with commas between, or all.")],
    target_macs: Annotated[str, Option(metavar="R[,R…]", help="MACs to keep, e.g. 0.7,0.55.")],
    settings: Annotated[
        list[str] | None, Option("--set", metavar="NAME.KEY=VALUE", help="E.g. merge.blocks=2.")
    ] = None,
    classes: options.Classes = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = False,
    recover: Annotated[int, Option(metavar="EPOCHS", min=0, help="Epochs of distillation for every row.")] = 0,
    images: Annotated[int, Option(min=1, help="Calibration images, a sample of --data.")] = 256,
    train_images: Annotated[int | None, Option(min=2, help="Images to recover with, a sample of --data [all].")] = None,
    limit: options.Limit = None,
    batch_size: options.BatchSize = 32,
    bench_batch_size: Annotated[int, Option(min=1, max=2**16, help="When timing.")] = 32,
    dtype: Annotated[str, Option(help=f"Of timing: {options.DTYPES}.")] = "float32",
    mode: Annotated[str, Option(help=f"Of timing: {options.MODES}; auto: the fastest.")] = "auto",
    seconds: Annotated[float, Option(help="Of timing, for each model.")] = 2.0,
    img_size: options.ImgSize = None,
    readout: options.Readout = None,
    device: options.Device = None,
    seed: options.Seed = 0,
    resume: Annotated[bool, Option("--resume", help="Measure only what is not there yet.")] = False,
    out: Annotated[Path | None, Option(metavar="DIR", help="Folder [comparisons/MODEL].")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare ways to slim a model at equal MACs: top-1 before and after one and the same recovery, and throughput."""
    import torch

    from patchslim.cli.opening import default_folder, note_random, open_device, open_model, workers_for
    from patchslim.data import open_images
    from patchslim.measure import CompareConfig, SpeedConfig, compare
    from patchslim.measure.accuracy import check_labelled
    from patchslim.measure.comparison import RESULT, check_place
    from patchslim.recover import RecoverConfig
    from patchslim.report import draw_comparison, markdown
    from patchslim.timing.modes import modes_for

    if not recover:
        options.refuse_idle(context, "nothing is recovered without --recover", "train_images")
    chosen, ratios = chosen_methods(methods, settings or []), read_ratios(target_macs)
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
    opened = partial(open_images, model=network, workers=workers_for(place))
    calibration, training = (opened(data, limit=count, seed=seed) for count in (images, train_images))
    judged = opened(val, limit=limit, split="test", classes=classes)
    check_labelled(judged)
    where: dict[str, Any] = {"train": training, "folder": folder, "resume": resume}
    with show_comparison() as listen:
        table = compare(network.to(place), calibration, judged, chosen, ratios, config, **where, listen=listen)
    write_text(folder / TABLE, markdown(table))
    files = [str(folder / RESULT), str(folder / TABLE)]
    if find_spec("matplotlib") is None:
        console.print("No figure: it needs matplotlib, pip install 'patchslim[viz]'.")
    else:
        draw_comparison(table, folder / FIGURE)
        files.append(str(folder / FIGURE))
    report(table | {"files": files}, as_json, f"{text_of(table)}\nsaved in {', '.join(files)}")


def chosen_methods(names: str, settings: Sequence[str]) -> list[Any]:
    """The methods asked for, each once, with their settings; MethodError for names and settings that are none."""
    from patchslim.methods import make
    from patchslim.methods import names as all_methods

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


def text_of(table: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    from patchslim.report.comparison import about, lines_of

    names, rows, notes = lines_of(table)
    shown = Table(*names, title=table["model"], caption=about(table), box=None, pad_edge=False)
    for number, column in enumerate(shown.columns):
        column.no_wrap, column.justify = True, "right" if number else "left"
    for words in rows:
        shown.add_row(*words)
    width = sum(max(map(len, column)) + 2 for column in zip(names, *rows, strict=True))
    return "\n".join([*table_lines(shown, max(width, 80)), *notes])
