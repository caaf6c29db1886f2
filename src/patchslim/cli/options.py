"""Arguments and options that several commands share, and how their words are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from patchslim.errors import BudgetError, MethodError, PatchslimError

MODEL_HELP = "A timm model name, such as deit_tiny_patch16_224, a folder with a Hugging Face model, or hf:NAME"
IMAGES_HELP = "a folder, an image, WebDataset shards ('shards-{0000..0003}.tar'), or digits."
DTYPES = "float32, bfloat16, float16"
MODES = "eager, compiled, graph, compiled-graph"
Model = Annotated[str, Argument(help=f"{MODEL_HELP}.", metavar="MODEL")]
RunFolder = Annotated[Path, Argument(help="A run folder of `patchslim slim`.", metavar="RUN")]
Data = Annotated[str, Option(metavar="SRC", help=f"Images: {IMAGES_HELP}")]
SomeData = Annotated[str | None, Option(metavar="SRC", help=f"Images [noise]: {IMAGES_HELP}")]
Classes = Annotated[
    str | None,
    Option(
        metavar="FILE|A,B,…",
        help="Class names in the order of their labels; or numbers: folders' names are the labels [natural order].",
    ),
]
Checkpoint = Annotated[Path | None, Option(metavar="F", help="Weights: safetensors, or a .pth of nothing but tensors.")]
Pretrained = Annotated[bool, Option("--pretrained", help="Take timm's pretrained weights.")]
ImgSize = Annotated[int | None, Option(min=1, help="Image side in pixels, if not the model's own.")]
Readout = Annotated[str | None, Option(metavar="R", help="What the head reads: token, avg, map … [the model's own].")]
Limit = Annotated[int | None, Option(min=1, help="Measure on a sample of this many.")]
BatchSize = Annotated[int, Option(min=1, max=2**16, help="Images at a time.")]
Device = Annotated[str | None, Option(help="cpu, cuda or cuda:N; the GPU if there is one.")]
Seed = Annotated[int, Option(min=0, max=2**31 - 1, help="Of samples, random weights and training.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object; all else goes to standard error.")]


def refuse_idle(context: Context, because: str, *names: str) -> None:
    """Raise PatchslimError for options that were given and would do nothing."""
    given = []
    for own in context.command.params:
        source = context.get_parameter_source(own.name or "")
        if own.name in names and source is not None and source.name == "COMMANDLINE":
            given.append(own.opts[0])
    if given:
        leave = "leave it out" if len(given) == 1 else "leave them out"
        raise PatchslimError(f"{' and '.join(given)} would do nothing, because {because}; {leave}.")


def check_ending(out: Path, ending: str, what: str) -> None:
    """Raise PatchslimError where a file would be written under the name of one of another kind, and replace that."""
    if out.suffix != ending:
        raise PatchslimError(f"{what} ends in {ending}, and {out} does not; give another name with --out.")


def read_ratios(text: str | None) -> list[float]:
    """The MAC ratios asked for, the largest first."""
    try:
        ratios = sorted(map(float, text.split(",")), reverse=True) if text is not None else []
    except ValueError:
        raise BudgetError(
            f"{text!r} is not a MAC ratio, nor several with commas between; try 0.6 or 0.7,0.55."
        ) from None
    check_shares(ratios)
    return ratios


def check_shares(ratios: Sequence[float]) -> None:
    """Raise BudgetError for a MAC ratio that is no share, and for one that is there twice."""
    for ratio in ratios:
        if not 0 < ratio < 1:
            raise BudgetError(f"The MAC ratio has to lie between 0 and 1, not at {ratio:g}; try 0.6.")
    names = [f"{ratio:g}" for ratio in ratios]  # as in the names of folders and rows
    for name in names:
        if names.count(name) > 1:
            raise BudgetError(f"The MAC ratio {name} is given twice; leave one out.")


def split_setting(text: str) -> tuple[str, str]:
    """`blocks=2` → blocks, 2."""
    key, equals, value = text.partition("=")
    if not (equals and key.strip()):
        raise MethodError(f"--set takes KEY=VALUE such as blocks=2, and {text!r} is not that.")
    return key.strip(), value.strip()
