"""Every figure's numbers as Markdown, from its raw file alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from figures.draw import WAYS, read_table
from figures.rows import Row
from patchslim.measure import paired
from patchslim.peers.hits import from_hex

Table = dict[str, Any]
HALF = 0.5  # the rate the paper compares scores at


def markdown(path: Path) -> list[str]:
    """The lines of a raw file's table."""
    table = read_table(path)
    return TABLES[table["figure"]](table)


def _similarity(table: Table) -> list[str]:
    blocks = sorted({row["block"] for row in table["rows"]})
    lines = []
    for of in dict.fromkeys(row["of"] for row in table["rows"]):
        own = [_where(table, of=of, block=block) for block in blocks]
        lines.append([of, *(f"{rows[0]['mean']:.3f}" if rows else "–" for rows in own)])
    return _lines(["mean cosine of patches, block", *blocks], lines)


def _tolerance(table: Table) -> list[str]:
    lines = [[row["mode"], f"{row['tolerance']:g}", *_found(table, row)] for row in table["rows"]]
    return _lines(["patches go by", "ε", "MACs", "top-1", "points lost", "patches per block"], lines)


def _pyramid(table: Table) -> list[str]:
    lines = [[row["mode"], *_found(table, row)] for row in table["rows"]]
    return _lines(["counts by", "MACs", "top-1", "points lost", "patches per block"], lines)


def _found(table: Table, row: Row) -> list[str]:
    counts = ", ".join(str(count) for count in row["patches_per_block"])
    lost = "–" if row["top1"] is None else _points(table, table["base_right"], row["right"])
    return [f"{row['macs_ratio']:.3f}", _top1([row]), lost, counts]


def _layers(table: Table) -> list[str]:
    """Top-1 of every reading and rate, a column for each block."""
    layers = sorted({row["layer"] for row in table["rows"]})
    lines = []
    for way, rate in dict.fromkeys((row["removed"], row["rate"]) for row in table["rows"]):
        own = [_top1(_where(table, removed=way, rate=rate, layer=layer)) for layer in layers]
        lines.append([WAYS[way], f"{rate:.0%}".replace("%", " %"), *own])
    return _lines(["pruned in", "rate", *layers], lines)


def _scores(table: Table) -> list[str]:
    """Top-1 of every block, reading and score, the mean over seeds, a column for each rate; and the paired differences
    between the paper's score and the others at half of the patches."""
    rates = sorted({row["rate"] for row in table["rows"]})
    lines, pairs = [], []
    for layer, way in dict.fromkeys((row["layer"], row["removed"]) for row in table["rows"]):
        rows = _where(table, layer=layer, removed=way)
        for score in dict.fromkeys(row["score"] for row in rows):
            own = [_top1([row for row in rows if (row["score"], row["rate"]) == (score, rate)]) for rate in rates]
            lines.append([layer, WAYS[way], score, *own])
        pairs += [[layer, WAYS[way], *line] for line in _against_impact(table, rows)]
    found = _lines(["block", "pruned in", "score", *(f"{100 * rate:g} %" for rate in rates)], lines)
    if pairs:
        found += ["", *_lines(["block", "pruned in", "against", "impact gains at 50 %, points"], pairs)]
    return found


def _against_impact(table: Table, rows: Sequence[Row]) -> list[list[str]]:
    half = [row for row in rows if row["rate"] == HALF and row["top1"] is not None]
    own = [row for row in half if row["score"] == "impact"]
    others = [row for row in half if own and row["score"] != "impact"]
    seeds = {score: sum(row["score"] == score for row in others) for score in {row["score"] for row in others}}
    names = [f"{row['score']}, seed {row['seed']}" if seeds[row["score"]] > 1 else row["score"] for row in others]
    return [[name, _points(table, own[0]["right"], row["right"])] for name, row in zip(names, others, strict=True)]


def _points(table: Table, first: str, second: str) -> str:
    """The first less the second on the same images, with the 95 % interval."""
    found = paired(from_hex(first, table["images"]), from_hex(second, table["images"]))
    return f"{found.difference:.2f} ({found.low:.2f} to {found.high:.2f})"


def _where(table: Table, **wanted: Any) -> list[Row]:
    return [row for row in table["rows"] if all(row[name] == value for name, value in wanted.items())]


def _top1(rows: Sequence[Row]) -> str:
    found = [row["top1"] for row in rows if row["top1"] is not None]
    return f"{sum(found) / len(found):.2f}" if found else "–"


def _lines(names: Iterable[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    head = [str(name) for name in names]
    bars = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(words) + " |" for words in bars]


TABLES: dict[str, Callable[[Table], list[str]]] = {
    "sim": _similarity,
    "eps": _tolerance,
    "even": _pyramid,
    "layers": _layers,
    "acc": _scores,
}
