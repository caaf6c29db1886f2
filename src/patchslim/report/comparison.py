"""A comparison of methods as lines of text, as Markdown, and as a figure."""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from patchslim.files import replacing
from patchslim.report.pictures import new_figure

Table = Mapping[str, Any]  # what `ps.compare` gives
HEAD = ("method", "MACs kept", "GMACs", "top-1", "against base", "against first", "images/s", "speed-up")
RECOVERED = ("recovered", "against base", "against first")
EMPTY = "–"
MARKERS = "osv^D*PX<>hdp"


def lines_of(table: Table) -> tuple[list[str], list[list[str]], list[str]]:
    """Column names, a list of words for every row, and notes on empty cells. The base model comes first."""
    recovered = any(row.get("recovered") for row in table["rows"])
    names = [*HEAD, *(RECOVERED if recovered else ())]
    rows = [_words(table["base"], recovered), *(_words(row, recovered) for row in table["rows"])]
    notes = [f"{row['method']} at {row['target_macs']:g}: {row['reason']}." for row in table["rows"] if row["reason"]]
    return names, rows, notes


def _words(row: Mapping[str, Any], recovered: bool) -> list[str]:
    width = len(HEAD) + (len(RECOVERED) if recovered else 0)
    if row.get("reason"):
        return [row["method"], f"{row['target_macs']:g}", *[EMPTY] * (width - 2)]
    words = [row["method"], f"{row['macs_ratio']:.3f}", f"{row['macs'] / 1e9:.4g}", *_score(row.get("untuned"))]
    words += [f"{row['throughput']:.1f}", f"{row['speedup']:.2f}×"]
    return [*words, *(_score(row.get("recovered")) if recovered else [])]


def _score(score: Mapping[str, Any] | None) -> list[str]:
    if score is None:
        return [EMPTY] * 3
    own = f"{score['top1']:.2f}"
    if "against_base" not in score:
        return [own, EMPTY, EMPTY]
    first = score["against_first"]
    leads = not (first["only_first"] or first["only_second"])
    return [own, interval(score["against_base"]), "first" if leads else interval(first)]


def interval(difference: Mapping[str, float]) -> str:
    """A paired difference in points, with its 95 % confidence interval."""
    return f"{difference['difference']:+.2f} ({difference['low']:+.2f} to {difference['high']:+.2f})"


def markdown(table: Table) -> str:
    """The table for a page: what was measured on what, the rows, and why cells are empty."""
    names, rows, notes = lines_of(table)
    bars = [names, ["---"] * len(names), *rows]
    text = [f"# {table['model']}: methods by MACs", "", about(table), ""]
    text += ["| " + " | ".join(words) + " |" for words in bars]
    return "\n".join([*text, *([""] if notes else []), *(f"- {note}" for note in notes)]) + "\n"


def about(table: Table) -> str:
    """How the numbers came about."""
    recovery, speed = table["settings"]["recover"], table["settings"]["speed"]
    words = (
        f"Top-1 in percent on {table['base']['untuned']['images']:,} images; differences in points, paired, with 95 % "
        "confidence intervals, from the base and from the first at the same MACs. "
        f"{table['images']['count']:,} unlabelled images to choose by. "
        f"Throughput on {table['device']}, batch {speed['batch_size']}, {speed['dtype']}, each row beside the base."
    )
    if recovery is not None:
        asked = recovery["epochs"]
        epochs = "usual epochs" if asked is None else f"{asked} epoch{'' if asked == 1 else 's'}"
        words += f" Recovered: {epochs} on {table['train']['count']:,} images, the same for all rows."
    return words


def draw_comparison(table: Table, path: Path) -> None:
    """Write a PNG: top-1 against the MACs kept, a line for each method, dashed untuned and solid recovered."""
    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    methods = list(dict.fromkeys(row["method"] for row in table["rows"]))
    recovered = any(row.get("recovered") for row in table["rows"])
    for number, (method, marker) in enumerate(zip(methods, cycle(MARKERS), strict=False)):
        rows = [row for row in table["rows"] if row["method"] == method and not row["reason"]]
        rows.sort(key=lambda row: row["macs_ratio"])
        faint: dict[str, Any] = {"linestyle": "--", "alpha": 0.45, "markersize": 4}
        states = {"recovered": {"label": method}, "untuned": faint} if recovered else {"untuned": {"label": method}}
        for state, style in states.items():
            points = [(row["macs_ratio"], row[state]["top1"]) for row in rows if row.get(state)]
            if points:
                axes.plot(*zip(*points, strict=True), color=f"C{number % 10}", marker=marker, **style)
    base = table["base"]["untuned"]
    axes.axhline(base["top1"], color="grey", linewidth=1, label="base")
    axes.set_xlabel("MACs kept")
    axes.set_ylabel(f"top-1 on {base['images']:,} images, %")
    dashes = ": dashed untuned, solid recovered" if recovered else ", untuned"
    axes.set_title(f"{table['model']}{dashes}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
