"""Every figure from its raw file alone: neither weights nor images are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from patchslim.errors import RunError
from patchslim.files import read_json, replacing
from patchslim.report.comparison import MARKERS
from patchslim.report.panels import new_figure

Table = dict[str, Any]
Row = dict[str, Any]
WAYS = {"skip": "this block only", "drop": "this block and all later ones"}


def draw(path: Path) -> Path:
    """Write a PNG beside a raw file."""
    table = read_table(path)
    figure, out = FIGURES[table["figure"]](table), path.with_suffix(".png")
    with replacing(out) as temporary:
        figure.savefig(temporary, format="png")
    return out


def read_table(path: Path) -> Table:
    """A raw file that has rows."""
    table = read_json(path, RunError, "figure")
    if table.get("figure") not in FIGURES or not table.get("rows"):
        raise RunError(f"{path} is no raw file of a figure; give one that paper_figures.py wrote.")
    return table


def _similarity(table: Table) -> Any:
    """Mean cosine by block, and bands that hold 90 % of the images."""
    figure = new_figure(6.5, 4.2)
    axes = figure.subplots()
    for number, (of, rows) in enumerate(_by(table["rows"], "of")):
        rows = sorted(rows, key=lambda row: row["block"])
        blocks, style = [row["block"] for row in rows], {"color": f"C{number}"}
        axes.plot(blocks, [row["mean"] for row in rows], marker=MARKERS[number], label=of, **style)
        axes.fill_between(blocks, *([row[name] for row in rows] for name in ("p5", "p95")), alpha=0.15, **style)
    axes.set_ylim(min(0.0, *(row["p5"] for row in table["rows"])), 1)
    _labels(axes, "block (0: the embedded patches)", "cosine similarity of patches", 8)
    images = table["rows"][0]["images"]
    axes.set_title(f"{table['model']}: similarity of patches; mean and 90 % of {images:,} images", fontsize=10)
    return figure


def _tolerance(table: Table) -> Any:
    """Against ε: accuracy and MACs; and the one against the other."""
    scored = any(row["top1"] is not None for row in table["rows"])
    panels = [("tolerance", "top1"), ("tolerance", "macs_ratio"), ("macs_ratio", "top1")] if scored else []
    panels = panels or [("tolerance", "macs_ratio")]
    names = {"tolerance": "tolerance ε", "macs_ratio": "MACs kept", "top1": _accuracy(table)}
    figure = new_figure(4.6 * len(panels), 4.0)
    for axes, (x, y) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, (mode, rows) in enumerate(_by(table["rows"], "mode")):
            rows = sorted(rows, key=lambda row: row[x])
            style = {"marker": MARKERS[number], "color": f"C{number}", "label": mode}
            axes.plot([row[x] for row in rows], [row[y] for row in rows], **style)
        if y == "top1":
            axes.axhline(table["base_top1"], color="grey", linewidth=1, label="host")
        if x == "tolerance":
            axes.set_xscale("log")
        _labels(axes, names[x], names[y], 7)
    figure.suptitle(f"{table['model']}: the tolerance, before recovery", fontsize=10)
    return figure


def _pyramid(table: Table) -> Any:
    """Patches by block, a line for each way of choosing their number."""
    figure = new_figure(7.0, 4.5)
    axes = figure.subplots()
    for number, row in enumerate(table["rows"]):
        top1 = "" if row["top1"] is None else f", top-1 {row['top1']:.2f}"
        label = f"{row['mode']}: MACs {row['macs_ratio']:.3f}{top1}"
        blocks = range(1, len(row["patches_per_block"]) + 1)
        axes.plot(blocks, row["patches_per_block"], marker=MARKERS[number % len(MARKERS)], label=label)
    axes.set_ylim(0, table["patches"] * 1.04)
    _labels(axes, "block", f"patches kept, of {table['patches']}", 7)
    axes.legend(fontsize=7, loc="lower left")
    axes.set_title(f"{table['model']}: patches kept per block, before recovery", fontsize=10)
    return figure


def _layers(table: Table) -> Any:
    """A line for each rate over the blocks, a panel for each reading."""
    ways = _by(table["rows"], "removed")
    figure = new_figure(5.2 * len(ways), 4.0)
    for axes, (way, rows) in zip(figure.subplots(1, len(ways), squeeze=False, sharey=True)[0], ways, strict=True):
        for number, (rate, own) in enumerate(_by(rows, "rate")):
            own = sorted(own, key=lambda row: row["layer"])
            style = {"marker": MARKERS[number % len(MARKERS)], "label": f"{100 * rate:g} % pruned"}
            axes.plot([row["layer"] for row in own], [_value(row) for row in own], **style)
        _host(axes, table)
        _labels(axes, "pruned block", _measured(table), 8)
        axes.set_title(f"pruned in {WAYS[way]}", fontsize=9)
    score = table["rows"][0]["score"]
    figure.suptitle(f"{table['model']}: one block pruned by {score}, no tuning", fontsize=10)
    return figure


def _scores(table: Table) -> Any:
    """A line for each score over the rates; a column for each block, a row for each reading."""
    ways, layers = _by(table["rows"], "removed"), sorted({row["layer"] for row in table["rows"]})
    figure = new_figure(4.2 * len(layers), 3.4 * len(ways) + 0.4)
    grid = figure.subplots(len(ways), len(layers), squeeze=False)
    for line, (way, rows) in zip(grid, ways, strict=True):
        for axes, layer in zip(line, layers, strict=True):
            for number, (score, own) in enumerate(_by([row for row in rows if row["layer"] == layer], "score")):
                _over_rates(axes, table, score, own, number)
            _host(axes, table)
            _labels(axes, "patches pruned, %", _measured(table), 7)
            axes.set_title(f"block {layer}, pruned in {WAYS[way]}", fontsize=9)
    figure.suptitle(f"{table['model']}: scores on one block, no tuning", fontsize=10)
    return figure


def _over_rates(axes: Any, table: Table, score: str, rows: Sequence[Row], number: int) -> None:
    """The mean over seeds, and a band from the worst to the best of them."""
    start = 100.0 if table["base_top1"] is None else table["base_top1"]
    points = [(0.0, [start]), *((rate, [_value(row) for row in own]) for rate, own in _by(rows, "rate"))]
    rates = [100 * rate for rate, _ in points]
    seeds = max(len(found) for _, found in points)
    label = score if seeds == 1 else f"{score}, {seeds} seeds"
    style = {"marker": MARKERS[number], "markersize": 4, "color": f"C{number}"}
    axes.plot(rates, [sum(found) / len(found) for _, found in points], label=label, **style)
    if seeds > 1:
        low, high = ([pick(found) for _, found in points] for pick in (min, max))
        axes.fill_between(rates, low, high, color=style["color"], alpha=0.2)


def _value(row: Row) -> float:
    """Top-1, or where there is none the MACs, in percent."""
    return float(100 * row["macs_ratio"] if row["top1"] is None else row["top1"])


def _measured(table: Table) -> str:
    return "MACs kept, %" if table["base_top1"] is None else _accuracy(table)


def _accuracy(table: Table) -> str:
    return f"top-1 on {table['images'] or 0:,} images, %"


def _host(axes: Any, table: Table) -> None:
    if table["base_top1"] is not None:
        axes.axhline(table["base_top1"], color="grey", linewidth=1, label="host")


def _by(rows: Sequence[Row], name: str) -> list[tuple[Any, list[Row]]]:
    """Rows in groups of one value each: numbers in ascending order, words as they come."""
    values = dict.fromkeys(row[name] for row in rows)
    ordered = sorted(values) if all(isinstance(value, float) for value in values) else list(values)
    return [(value, [row for row in rows if row[name] == value]) for value in ordered]


def _labels(axes: Any, x: str, y: str, size: int) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=size)


FIGURES: dict[str, Callable[[Table], Any]] = {
    "sim": _similarity,
    "eps": _tolerance,
    "even": _pyramid,
    "layers": _layers,
    "acc": _scores,
}
