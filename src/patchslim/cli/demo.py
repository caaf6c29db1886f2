"""`patchslim demo`: the whole way on the bundled digits model, in a minute or two."""

from pathlib import Path
from typing import Annotated

from typer import Option

from patchslim.cli import options


def demo(
    out: Annotated[Path, Option(metavar="DIR", help="Run folder.")] = Path("demo"), as_json: options.AsJson = False
) -> None:
    """Slim the bundled digits model in two ways: search, measure, draw. Needs no data and no GPU."""
    from patchslim.cli.showcase import show_digits

    show_digits(out, as_json)
