"""Every figure from its rows alone: neither weights nor images are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.rows import Row
from patchslim.errors import DataError
from patchslim.files import replacing
from patchslim.report.comparison import MARKERS
from patchslim.report.pictures import new_figure

WAYS = {"skip": "this block only", "drop": "this block and all later ones"}


def draw(figure: str, rows: Sequence[Row], path: Path) -> None:
    """Write a PNG of one model's rows on one device."""
    own = [row for row in rows if row.point is not None or row.target_macs is not None]
    if not own:
        raise DataError(f"There are no rows of the figure {figure}; measure it first.")
    drawn = FIGURES[figure](own, next((row.top1 for row in rows if row.method == "host" and row.top1), None))
    drawn.suptitle(f"{own[0].model}: {TITLES[figure]}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        drawn.savefig(temporary, format="png")


def at(row: Row, name: str) -> Any:
    """Where a row lies in its figure; a method with its settings is its own place."""
    if name == "method":
        return ", ".join([row.method, *(f"{key}={value}" for key, value in row.settings.items())])
    return (row.point or {}).get(name)


def groups(rows: Sequence[Row], name: str) -> list[tuple[Any, list[Row]]]:
    """Rows of one value each: numbers in ascending order, words as they come."""
    values = list(dict.fromkeys(at(row, name) for row in rows))
    ordered = values if any(isinstance(value, str | None) for value in values) else sorted(values)
    return [(value, [row for row in rows if at(row, name) == value]) for value in ordered]


def line(axes: Any, number: int, label: str, points: Sequence[tuple[Any, Any]]) -> None:
    """A marked line in the colour of its number."""
    shown = sorted((x, y) for x, y in points if y is not None)
    mark = next(mark for place, mark in enumerate(cycle(MARKERS)) if place == number)
    axes.plot(
        *zip(*shown, strict=True) if shown else ([], []), marker=mark, markersize=4, color=f"C{number}", label=label
    )


def finish(axes: Any, x: str, y: str, base: float | None = None, title: str = "") -> None:
    """Names, the host's line and the legend."""
    if base is not None:
        axes.axhline(base, color="grey", linewidth=1, label="host")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def similarity(rows: Sequence[Row], base: float | None) -> Any:
    """Mean cosine by block, and bands that hold 90 % of the images."""
    figure = new_figure(6.5, 4.2)
    axes = figure.subplots()
    for number, (of, own) in enumerate(groups(rows, "of")):
        own = sorted(own, key=lambda row: int(at(row, "block")))
        blocks = [at(row, "block") for row in own]
        low, high, mean = ([(row.values or {})[name] for row in own] for name in ("p5", "p95", "mean"))
        line(axes, number, of, list(zip(blocks, mean, strict=True)))
        axes.fill_between(blocks, low, high, alpha=0.15, color=f"C{number}")
    finish(axes, "block (0: the embedded patches)", "mean cosine of all pairs of patches")
    return figure


def tolerance(rows: Sequence[Row], base: float | None) -> Any:
    """Against ε: accuracy and MACs; and the one against the other."""
    values: dict[str, Callable[[Row], Any]] = {
        "tolerance ε": lambda row: at(row, "tolerance"),
        "MACs kept": lambda row: row.macs_ratio,
        "top-1, %": lambda row: row.top1,
    }
    panels = [("tolerance ε", "MACs kept")]
    if any(row.top1 is not None for row in rows):
        panels = [("tolerance ε", "top-1, %"), *panels, ("MACs kept", "top-1, %")]
    figure = new_figure(4.6 * len(panels), 4.0)
    for axes, (x, y) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, (method, own) in enumerate(groups(rows, "method")):
            line(axes, number, method, [(values[x](row), values[y](row)) for row in own])
        if x.startswith("tolerance"):
            axes.set_xscale("log")
        finish(axes, x, y, base if y.startswith("top-1") else None)
    return figure


def pyramid(rows: Sequence[Row], base: float | None) -> Any:
    """Patches by block, a line for each way of choosing their number."""
    figure = new_figure(7.0, 4.5)
    axes = figure.subplots()
    for number, row in enumerate(row for row in rows if row.patches_per_block):
        words = [at(row, "method"), *([f"ε = {at(row, 'tolerance')}"] if at(row, "tolerance") else [])]
        words += [f"MACs {row.macs_ratio:.3f}", *([] if row.top1 is None else [f"top-1 {row.top1:.2f}"])]
        line(axes, number, ", ".join(words), list(enumerate(row.patches_per_block or [], start=1)))
    axes.set_ylim(bottom=0)
    finish(axes, "block", "patches kept")
    return figure


def value_of(rows: Sequence[Row]) -> Callable[[Row], Any]:
    """Top-1 where it is known, else MACs."""
    scored = any(row.top1 is not None for row in rows)
    return lambda row: row.top1 if scored else row.macs_ratio


def layers(rows: Sequence[Row], base: float | None) -> Any:
    """A line for each rate over the blocks, a panel for each reading."""
    ways, value = groups(rows, "removed"), value_of(rows)
    figure = new_figure(5.2 * len(ways), 4.0)
    for axes, (way, own) in zip(figure.subplots(1, len(ways), squeeze=False, sharey=True)[0], ways, strict=True):
        for number, (rate, some) in enumerate(groups(own, "rate")):
            line(axes, number, f"{100 * rate:g} % pruned", [(at(row, "block"), value(row)) for row in some])
        finish(axes, "pruned block", "top-1, %" if base else "MACs kept", base, f"pruned in {WAYS[way]}")
    return figure


def scores(rows: Sequence[Row], base: float | None) -> Any:
    """A line for each score over the rates, the mean of its seeds; a column for each block, a row for each reading."""
    ways, blocks, value = groups(rows, "removed"), [block for block, _ in groups(rows, "block")], value_of(rows)
    figure = new_figure(4.2 * len(blocks), 3.4 * len(ways) + 0.4)
    for panels, (way, own) in zip(figure.subplots(len(ways), len(blocks), squeeze=False), ways, strict=True):
        for axes, block in zip(panels, blocks, strict=True):
            some = [row for row in own if at(row, "block") == block]
            for number, (score, alike) in enumerate(groups(some, "score")):
                over_rates(axes, number, score, alike, value)
            finish(axes, "patches pruned, %", "top-1, %" if base else "MACs kept", base, f"block {block}, {WAYS[way]}")
    return figure


def over_rates(axes: Any, number: int, score: str, rows: Sequence[Row], value: Callable[[Row], Any]) -> None:
    """The mean over seeds, and a band from the worst to the best of them."""
    found = [(100 * rate, [value(row) for row in own if value(row) is not None]) for rate, own in groups(rows, "rate")]
    known = [(rate, own) for rate, own in found if own]
    seeds = max((len(own) for _, own in known), default=1)
    label = score if seeds == 1 else f"{score}, {seeds} seeds"
    line(axes, number, label, [(rate, sum(own) / len(own)) for rate, own in known])
    if seeds > 1:
        low, high = ([pick(own) for _, own in known] for pick in (min, max))
        axes.fill_between([rate for rate, _ in known], low, high, alpha=0.15, color=f"C{number}")


FIGURES: dict[str, Callable[[Sequence[Row], float | None], Any]] = {
    "sim": similarity,
    "eps": tolerance,
    "even": pyramid,
    "layers": layers,
    "acc": scores,
}
TITLES = {
    "sim": "similarity of patches",
    "eps": "the tolerance, before recovery",
    "even": "patches kept per block, before recovery",
    "layers": "one block pruned, no tuning",
    "acc": "scores on one block, no tuning",
}
