"""The command line as typer sees it: a list of commands, each of which is imported when it is asked for by name."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from patchslim.cli.table import COMMANDS
from patchslim.version import __version__

SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class Commands(TyperGroup):
    """The commands, of which typer knows names and one line each; the one that runs is imported."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that words name, or typer's complaint with the nearest names."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else open_command(name), rest


def open_command(name: str) -> Any:
    """A command with its options."""
    own = COMMANDS[name]
    alone = typer.Typer(**SETTINGS, add_completion=False)
    alone.command(name)(getattr(import_module(f"patchslim.cli.{own.module}"), own.function))
    return typer.main.get_command(alone)


def show_version(asked: bool) -> None:
    """Print the version and stop, when asked."""
    if asked:
        print(__version__)
        raise typer.Exit


app = typer.Typer(name="patchslim", cls=Commands, **SETTINGS)


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Print the version."),
) -> None:
    """Make a pretrained vision transformer faster by not computing the patches that don't matter."""


def not_yet_open() -> Callable[[], None]:
    """What stands for a command in the list."""
    return lambda: None


for _name, _own in COMMANDS.items():
    app.command(_name, help=_own.help)(not_yet_open())
