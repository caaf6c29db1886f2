"""The runner: `python -m benchmarks NAME …`; without a name it lists the questions."""

from __future__ import annotations

import sys

import typer

from benchmarks import ablations, accuracy, gpu, search, speed, table
from patchslim.errors import PatchslimError

app = typer.Typer(
    name="python -m benchmarks",
    help="Measure patchslim: each command answers one question and writes rows to results/.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.command("accuracy")(accuracy.accuracy)
app.command("speed")(speed.speed)
app.command("search")(search.search)
app.command("ablations")(ablations.ablations)
app.command("gpu")(gpu.gpu)
app.command("table")(table.table)


def main() -> None:
    """Run a benchmark; what a user may cause ends with one sentence and exit code 2."""
    try:
        app()
    except PatchslimError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
