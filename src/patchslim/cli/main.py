"""The command line: `patchslim COMMAND`. One thin file per command; mistakes end in one sentence and exit code 2."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer

from patchslim.cli import (
    bench,
    compare,
    demo,
    evaluate,
    export,
    finetune,
    inspect,
    methods,
    report,
    seal,
    slim,
    verify,
    view,
)
from patchslim.cli.old import instead_of
from patchslim.errors import PatchslimError, PatchslimWarning
from patchslim.version import __version__

INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    name="patchslim",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("methods")(methods.list_methods)
app.command("inspect")(inspect.inspect_model)
app.command("slim")(slim.slim)
app.command("finetune")(finetune.finetune)
app.command("eval")(evaluate.evaluate_model)
app.command("bench")(bench.bench)
app.command("export")(export.export_run)
app.command("compare")(compare.compare_methods)
app.command("report")(report.report_runs)
app.command("view")(view.view)
app.command("verify")(verify.verify)
app.command("seal")(seal.seal_run)


def show_version(asked: bool) -> None:
    """Print the version and stop, when asked."""
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Print the version."),
) -> None:
    """Make a pretrained vision transformer faster by not computing the patches that don't matter."""


def main() -> None:
    """Run the command line and exit: 0 when done, 2 with one sentence on standard error when something is wrong."""
    warnings.showwarning = show_warning(warnings.showwarning)
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
    except PatchslimError as error:
        stop(str(error))
    except (KeyboardInterrupt, typer.Abort):
        stop("Interrupted; `slim`, `finetune` and `compare` go on where they were with the same command and --resume.")
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        stop(f"A file can't be read or written ({error.strerror or error}{where}); check the path and the space left.")
    except Exception as error:
        # Typer's own complaints about options and arguments, or what replaced an option that a command had once;
        # anything else is a bug and keeps its traceback.
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command", None)
        old = instead_of(getattr(command, "name", None), getattr(error, "option_name", None))
        stop(old or f"{error.format_message().rstrip('.')} (see patchslim --help).")
    sys.exit(code if isinstance(code, int) else 0)


def show_warning(usual: Callable[..., None]) -> Callable[..., None]:
    """Our own warnings as one line on standard error; others as usual."""

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, PatchslimWarning):
            print(message, file=sys.stderr)
        else:
            usual(message, category, *where)

    return show


def stop(sentence: str) -> None:
    """Say what is wrong in one line and exit with 2."""
    print("patchslim: " + " ".join(sentence.split()), file=sys.stderr)
    sys.exit(2)
