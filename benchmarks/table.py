"""The one maker of tables: rows of results/ as Markdown, by question; and the README's table of results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from benchmarks.inputs import MODEL, PROMISED, Out
from benchmarks.reliability.outcomes import SHOWN
from benchmarks.rows import RESULTS, Row, read_rows
from patchslim.errors import PatchslimError
from patchslim.methods import DEFAULT

EMPTY = "–"
Column = Callable[[Row], str]
Page = Callable[[Sequence[Row]], str]
PAGES: dict[str, Page] = {}  # tables that are not one row of results/ a line


def number(name: str, how: str) -> Column:
    """A column that shows one of a row's numbers."""

    def show(row: Row) -> str:
        value = getattr(row, name)
        return EMPTY if value is None else format(value, how)

    return show


def interval(name: str) -> Column:
    """A number with its 95 % interval."""

    def show(row: Row) -> str:
        middle, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
        if middle is None:
            return EMPTY
        return f"{middle:.2f}" if low is None else f"{middle:.2f} ({low:.2f} to {high:.2f})"

    return show


def place(name: str) -> Column:
    """Where a row lies in its figure, or what else tells it from others."""
    return lambda row: EMPTY if row.point is None or name not in row.point else f"{row.point[name]}"


def value(name: str, how: str) -> Column:
    """One of a row's numbers that have no column of their own."""
    return lambda row: EMPTY if row.values is None or name not in row.values else format(row.values[name], how)


def share_of(row: Row) -> float | None:
    """How much of what its MACs promise a model is faster, over the host with the same patch embedding."""
    if row.speedup_same_embedding is None or row.macs_ratio is None:
        return None
    return row.speedup_same_embedding * row.macs_ratio


def share(row: Row) -> str:
    """The same as a column."""
    found = share_of(row)
    return EMPTY if found is None else f"{found:.0%}"


def total(names: Sequence[str]) -> Column:
    """The sum of some of a row's numbers that have no column of their own; those that are not there are 0."""
    return lambda row: f"{sum((row.values or {}).get(name, 0) for name in names):,.0f}"


def method_of(row: Row) -> str:
    """`merge`, `blocks=none`."""
    words = [f"`{row.method}`" if row.method != "host" else "host"]
    return ", ".join([*words, *(f"`{key}={str(value).lower()}`" for key, value in row.settings.items())])


COLUMNS: dict[str, dict[str, Column]] = {
    "accuracy": {
        "method": method_of,
        "MACs": number("macs_ratio", ".3f"),
        "epochs": number("recovery_epochs", "d"),
        "top-1": interval("top1"),
        "lost": interval("lost"),
        "error": number("error", ".4f"),
        "search, s": number("search_seconds", ".0f"),
    },
    "speed": {
        "method": method_of,
        "px": number("image_size", "d"),
        "batch": number("batch_size", "d"),
        "dtype": number("dtype", ""),
        "MACs": number("macs_ratio", ".3f"),
        "images/s": number("images_per_second", ",.0f"),
        "mode": number("mode", ""),
        "× host": number("speedup", ".2f"),
        "× host, same embedding": number("speedup_same_embedding", ".2f"),
        "of the promised": share,
    },
    "search": {
        "method": method_of,
        "MACs": number("macs_ratio", ".3f"),
        "images": number("images", "d"),
        "seconds": number("search_seconds", ".0f"),
        "passes": number("search_passes", ".1f"),
        "GiB": number("peak_memory_gib", ".1f"),
    },
    "reliability": {
        "part": place("part"),
        "what": place("group"),
        "cases": total(["cases"]),
        **{name: total(outcomes) for name, outcomes in SHOWN.items()},
    },
}


def markdown(columns: dict[str, Column], rows: Sequence[Row]) -> str:
    """A table of rows."""
    return markdown_lines([list(columns), *([show(row) for show in columns.values()] for row in rows)])


def markdown_lines(lines: Sequence[Sequence[str]]) -> str:
    """A table whose first line is its head."""
    head, *rest = lines
    return "\n".join("| " + " | ".join(words) + " |" for words in (head, ["---"] * len(head), *rest))


def table(
    question: Annotated[str, typer.Argument(help=f"{', '.join(COLUMNS)}, targets, or readme.")],
    model: Annotated[str | None, typer.Option("--model")] = None,
    target_macs: Annotated[float | None, typer.Option("--target-macs")] = None,
    folder: Out = RESULTS,
) -> None:
    """Print rows of results/ as Markdown."""
    if question == "readme":
        print(readme_table(list(read_rows(folder)), model or MODEL, target_macs or 0.55))
        return
    if question in PAGES:
        print(PAGES[question](list(read_rows(folder))))
        return
    if question not in COLUMNS:
        known = ", ".join([*COLUMNS, *PAGES])
        raise PatchslimError(f"There is no question {question!r}; choose from {known} or readme.")
    rows = [row for row in read_rows(folder) if row.question == question and model in (None, row.model)]
    rows = [row for row in rows if target_macs in (None, row.target_macs) or row.method == "host"]
    print(pages(question, rows))


def pages(question: str, rows: Sequence[Row]) -> str:
    """A table for each device, and for each model where models are no column; then why rows have no numbers."""
    columns, found = COLUMNS[question], []

    def key(row: Row) -> tuple[str | None, str, int | None]:
        return None if "model" in columns else row.model, row.device, row.threads

    for model, device, threads in dict.fromkeys(map(key, rows)):
        own = [row for row in rows if key(row) == (model, device, threads)]
        where = device if threads is None else f"{device}, {threads} threads"
        notes = [f"- {method_of(row)}{_asked_of(row)}: {row.reason}" for row in own if row.reason]
        notes += dict.fromkeys(f"- {row.model}: {row.note}" for row in own if row.note)
        shown = markdown(columns, [row for row in own if not row.reason])
        found.append("\n".join([where if model is None else f"{model} on {where}", "", shown, "", *notes]))
    return "\n".join(found)


def _asked_of(row: Row) -> str:
    return "" if row.target_macs is None else f" at {row.target_macs:g}"


def readme_table(rows: Sequence[Row], model: str, ratio: float) -> str:
    """One line per method, the most accurate first: accuracy untuned, speed at the ratio of all speeds, minutes of a
    search. Columns of which nothing was measured go."""
    own = [row for row in rows if row.model == model and row.reason is None and row.image_size in (None, 224)]
    own = [row for row in own if row.target_macs in (None, PROMISED if row.question == "speed" else ratio)]
    accuracies = [row for row in own if row.question == "accuracy"]
    accuracies.sort(key=lambda row: row.images or 0)  # what was chosen by the most images counts
    # They are compared on one device: one that has the default, and of these that of most rows.
    devices = Counter(row.device for row in accuracies)
    place = max(
        devices, key=lambda name: (name in {r.device for r in accuracies if r.method == DEFAULT}, devices[name])
    )
    accuracies = [row for row in accuracies if row.device == place]
    untuned = [row for row in accuracies if not row.recovery_epochs]
    untuned = list({(row.method, repr(row.settings)): row for row in untuned}.values())
    untuned.sort(key=lambda row: (row.method != "host", row.lost or 0))

    def other(row: Row, question: str, **wanted: object) -> Row | None:
        """The first row of the same method that answers a question, with these values."""
        alike = (one for one in own if (one.question, one.method, one.settings) == (question, row.method, row.settings))
        return next((one for one in alike if all(getattr(one, key) == value for key, value in wanted.items())), None)

    def fast(batch: int, dtype: str) -> Column:
        def show(row: Row) -> str:
            found = other(row, "speed", batch_size=batch, dtype=dtype)
            if found is None or found.images_per_second is None:
                return EMPTY
            times = "" if row.method == "host" else f" ({found.speedup:.2f}×)"
            return f"{found.images_per_second:,.0f}{times}"

        return show

    def recovered(row: Row) -> str:
        alike = (one for one in accuracies if (one.method, one.settings) == (row.method, row.settings))
        found = max(alike, key=lambda one: (one.recovery_epochs or 0, one.images or 0))
        return interval("top1")(found) if found.recovery_epochs else EMPTY

    def minutes(row: Row) -> str:
        found = other(row, "search") or row
        return f"{found.search_seconds / 60:.1f}" if found.search_seconds else EMPTY

    columns: dict[str, Column] = {
        "method": method_of,
        "top-1, %": interval("top1"),
        "points lost": interval("lost"),
        "recovered, %": recovered,
        "GPU, batch 256": fast(256, "bfloat16"),
        "GPU, batch 1": fast(1, "bfloat16"),
        "CPU, batch 16": fast(16, "float32"),
        "CPU, batch 1": fast(1, "float32"),
        "search, minutes": minutes,
    }
    known = {name: show for name, show in columns.items() if any(show(row) != EMPTY for row in untuned)}
    return markdown(known, untuned)
