"""`patchslim methods`: what there is to slim by, and the settings of each."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from rich.table import Table
from typer import Argument

from patchslim.cli import options
from patchslim.cli.old import check_names
from patchslim.cli.terminal import report, table_lines

WIDTH = 120


def list_methods(
    name: Annotated[str | None, Argument(metavar="NAME", help="Show one of them, with its settings.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the methods: what each does, when to take it, its settings and their defaults."""
    from patchslim.methods import DEFAULT, describe, names

    if name is not None:
        check_names([name])
        found = describe(name)
        report(found, as_json, one(found))
        return
    every = [describe(each) for each in names()]
    report({"default": DEFAULT, "methods": every}, as_json, listed(every))


def one(method: Mapping[str, Any]) -> str:
    """One method for reading: what, when, settings."""
    from patchslim.methods import DEFAULT

    usual = ", the default" if method["name"] == DEFAULT else ""
    package = "" if method["package"] is None else f", of the package {method['package']}"
    lines = [f"{method['name']}{usual}{package}", "", *(f"  {line}".rstrip() for line in method["what"].splitlines())]
    settings = [
        f"  --set {key}={str(own['default']).lower():<8} {own['what']} ({own['type']})"
        for key, own in method["settings"].items()
    ]
    return "\n".join([*lines, "", *(settings or ["  It has no settings."])])


def listed(methods: Sequence[Mapping[str, Any]]) -> str:
    """A line or two for each method, group by group."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for group in dict.fromkeys(method["group"] for method in methods):
        table.add_row(f"{group}:")
        for method in (own for own in methods if own["group"] == group):
            table.add_row(f"  {method['name']}", " ".join(method["what"].split("\n\n")[0].split()))
    lines = [*table_lines(table, WIDTH), "", "patchslim methods NAME shows when to take it, and its settings."]
    return "\n".join(lines)
