"""What several commands need: opening models and devices, options, output."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

from patchslim.errors import (
    BudgetError,
    CheckpointError,
    MethodError,
    PatchslimError,
    RunError,
    UnsupportedModel,
    first_words,
)
from patchslim.hosts import open_hf
from patchslim.hosts.checkpoint import put_checkpoint_, read_checkpoint
from patchslim.hosts.hf_open import ON_HUB, is_hf_name
from patchslim.runs.store import CONFIG, holds_run

console = Console(stderr=True)  # everything but results

MODEL_HELP = "A timm model name, such as deit_tiny_patch16_224, a folder with a Hugging Face model, or hf:NAME"
IMAGES_HELP = "a folder, WebDataset shards ('shards-{0000..0003}.tar'), hf:NAME, or digits."
Model = Annotated[str, typer.Argument(help=f"{MODEL_HELP}.", metavar="MODEL")]
RunFolder = Annotated[Path, typer.Argument(help="A run folder of `patchslim slim`.", metavar="RUN")]
Data = Annotated[str, typer.Option("--data", metavar="SRC", help=f"Images: {IMAGES_HELP}")]
SomeData = Annotated[str | None, typer.Option("--data", metavar="SRC", help=f"Images [noise]: {IMAGES_HELP}")]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="F", help="Weights: safetensors, or a .pth of nothing but tensors."),
]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="Take timm's pretrained weights.")]
ImgSize = Annotated[int | None, typer.Option("--img-size", min=1, help="Image side in pixels, if not the model's own.")]
ReadoutOption = Annotated[
    str | None, typer.Option("--readout", metavar="R", help="What the head reads: token, avg, map … [the model's own].")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Measure on a sample of this many.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, max=2**16, help="Images at a time.")]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N; the GPU if there is one.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Of samples, random weights and training.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object; all else goes to standard error.")]


def open_model(
    name: str,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    img_size: int | None = None,
    readout: str | None = None,
) -> nn.Module:
    """A model in eval mode: timm's with the weights asked for, or one of Hugging Face, which brings its own.

    `readout` is timm's `global_pool`, where the head shall read something else than the model comes with.
    """
    if is_hf_name(name):
        if readout is not None:
            raise UnsupportedModel(f"{name} is a Hugging Face model, whose head reads what its class says.")
        if checkpoint is not None:
            raise CheckpointError(f"{name} is a Hugging Face model and brings its own weights; leave out --checkpoint.")
        return open_hf(name, img_size)
    if not timm.is_model(name):
        raise UnsupportedModel(_unknown(name))
    if checkpoint is not None and pretrained:
        raise CheckpointError("Give --checkpoint or --pretrained, not both.")
    settings = {"img_size": img_size, "global_pool": readout}
    settings = {key: value for key, value in settings.items() if value is not None}
    if checkpoint is None:
        return _create(name, pretrained, settings).eval()
    weights = read_checkpoint(checkpoint)
    model = _create(name, pretrained, settings | _classes_of(weights))
    put_checkpoint_(model, weights, str(checkpoint))
    return model.eval()


def _create(name: str, pretrained: bool, settings: Mapping[str, Any]) -> nn.Module:
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **settings)
    except Exception as error:
        if pretrained:
            raise CheckpointError(
                f"timm can't make {name} with pretrained weights ({first_words(error)}); where they can't be "
                "downloaded, give them as a file with --checkpoint."
            ) from None
        raise UnsupportedModel(f"timm can't make {name} with these settings: {first_words(error)}.") from None
    return model


def _unknown(name: str) -> str:
    if not name.strip():
        return "The model's name is empty; give a timm model name, such as deit_tiny_patch16_224, or a run folder."
    if Path(name).is_dir():
        return (
            f"{name} is a folder but holds no run and no Hugging Face model: it has no {CONFIG}; "
            "give a run folder or a timm model name."
        )
    close = difflib.get_close_matches(name, timm.list_models(), n=1)
    hint = f"did you mean {close[0]}?" if close else "timm.list_models() has the names."
    return f"There is no run folder and no timm model called {name}; {hint}"


def _classes_of(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """A fine-tuned model's own number of classes, read off its head, so that the user need not say it."""
    head = weights.get("head.weight")
    return {} if head is None or head.ndim != 2 else {"num_classes": head.shape[0]}


def default_folder(kind: str, model: str) -> Path:
    """runs/MODEL or comparisons/MODEL; of a folder or a name on the hub, the last word of it."""
    return Path(kind) / (Path(model.removeprefix(ON_HUB)).resolve().name if is_hf_name(model) else model)


def is_run(name: str) -> bool:
    """Whether a MODEL|RUN argument is a run folder."""
    return bool(name) and holds_run(Path(name)) and not is_hf_name(name)


def refuse_with_run(run: str, **options: Any) -> None:
    """Raise RunError when options that make a model are given with a run, which brings its own."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise RunError(f"{run} is a run and brings its own model and weights; leave out {', '.join(given)}.")


def note_random(names: Iterable[str], checkpoint: Path | None, pretrained: bool) -> None:
    """Say so when a model has nothing but random weights: those of Hugging Face bring their own."""
    if checkpoint is None and not pretrained and not all(is_hf_name(name) for name in names):
        console.print("No --checkpoint and no --pretrained: the weights are random.")


def open_device(name: str | None) -> torch.device:
    """The device asked for, or the best there is."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("only cpu, cuda and mps are known")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise PatchslimError(
            f"The device {name} can't be used here ({first_words(error)}); try --device cpu."
        ) from None
    return device


def workers_for(device: torch.device) -> int:
    """Loader processes: a GPU must not wait for images, a CPU needs its cores for the model."""
    return 8 if device.type == "cuda" else 0


def read_ratios(text: str | None) -> list[float]:
    """The MAC ratios asked for, each once, the largest first."""
    try:
        return sorted({float(word) for word in text.split(",")}, reverse=True) if text is not None else []
    except ValueError:
        raise BudgetError(f"{text} is not a MAC ratio, nor several with commas between; try 0.6 or 0.7,0.55.") from None


def split_setting(text: str) -> tuple[str, str]:
    """`blocks=2` → blocks, 2."""
    key, equals, value = text.partition("=")
    if not (equals and key.strip()):
        raise MethodError(f"--set takes KEY=VALUE such as blocks=2, and {text!r} is not that.")
    return key.strip(), value.strip()


def report(result: Mapping[str, Any], as_json: bool, text: str) -> None:
    """The command's result on standard output, as JSON or for reading."""
    print(json.dumps(result) if as_json else text, flush=True)


def note_skipped(skipped: int, total: int) -> None:
    """Say how many images could not be read, if any."""
    if skipped:
        console.print(f"{skipped} of {total} images could not be read and were left out.")


@contextmanager
def shown(what: str, total: int | None = None, now: str = "", *more: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A bar on the terminal; gives a function that moves it: `description`, `now`, `completed`, `advance`, `total`."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    with Progress(*columns, *more, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total, now=now)

        def move(**changes: Any) -> None:
            progress.update(task, **changes)

        yield move
