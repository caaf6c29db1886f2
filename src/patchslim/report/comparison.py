"""A comparison of methods as lines of text, as Markdown, and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from patchslim.files import replacing
from patchslim.report.panels import new_figure

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
    untuned = _score(row.get("untuned"))
    words = [row["method"], f"{row['macs_ratio']:.3f}", f"{row['macs'] / 1e9:.4g}", *untuned]
    words += [f"{row['throughput']:.1f}", f"{row['speedup']:.2f}×"]
    return [*words, *(_score(row.get("recovered")) if recovered else [])]


def _score(score: Mapping[str, Any] | None) -> list[str]:
    if score is None:
        return [EMPTY] * 3
    own = f"{score['top1']:.2f}"
    if "against_base" not in score:
        return [own, EMPTY, EMPTY]
    leads = score["against_first"]["only_first"] == score["against_first"]["only_second"] == 0
    first = "first" if leads and not score["against_first"]["difference"] else interval(score["against_first"])
    return [own, interval(score["against_base"]), first]


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


def about(table: Table, compared: str = "from the base and from the first at the same MACs") -> str:
    """How the numbers came about; `compared`: what differences are shown from."""
    settings, speed = table["settings"], table["settings"]["speed"]
    recovery = settings["recover"]
    words = (
        f"Top-1 in percent on {table['base']['untuned']['images']:,} images; differences in points, paired, with 95 % "
        f"confidence intervals, {compared}. {table['images']['count']:,} "
        f"unlabelled images to choose by. Throughput on {table['device']}, batch {speed['batch_size']}, "
        f"{speed['dtype']}, each row beside the base."
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
        style: dict[str, Any] = {"color": f"C{number % 10}", "marker": marker}
        if recovered:
            _line(axes, rows, "recovered", label=method, **style)
            _line(axes, rows, "untuned", linestyle="--", alpha=0.45, markersize=4, **style)
        else:
            _line(axes, rows, "untuned", label=method, **style)
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


def _line(axes: Any, rows: Sequence[Mapping[str, Any]], state: str, **style: Any) -> None:
    points = [(row["macs_ratio"], row[state]["top1"]) for row in rows if row.get(state)]
    if points:
        axes.plot([x for x, _ in points], [y for _, y in points], **style)
