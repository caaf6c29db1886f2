"""Tables 1 and 3 as pictures: points lost, or speed, against the MACs kept. Filled marks are measured, hollow ones
published."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.paper.published import BASELINE, beside, printed
from benchmarks.rows import Row
from benchmarks.table import method_of
from patchslim.files import replacing
from patchslim.report.comparison import MARKERS
from patchslim.report.pictures import new_figure

FAR = 10  # points lost, from which the axis is a logarithmic one


def draw(table: str, rows: Sequence[Row], path: Path) -> None:
    """A panel for each model."""
    shown = [row for row in rows if row.reason is None and row.method != "host"]
    models = list(dict.fromkeys(row.model for row in shown))
    if not models:
        return
    figure = new_figure(6.0 * len(models), 4.5)
    styles = style_of(shown)
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        panel(axes, table, [row for row in shown if row.model == model], styles)
        axes.set_title(model, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def style_of(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A colour and a mark for each method."""
    names = dict.fromkeys(map(method_of, rows))
    marks = zip(names, cycle(MARKERS), range(len(names)), strict=False)
    return {name: {"color": f"C{place % 10}", "marker": mark, "linestyle": "none"} for name, mark, place in marks}


def panel(axes: Any, table: str, rows: Sequence[Row], styles: dict[str, dict[str, Any]]) -> None:
    """One model: what is lost where top-1 is known, recovered if it was; else how fast it is."""
    lost = [row for row in rows if row.lost is not None]
    last = {(method_of(row), row.target_macs): row for row in lost or rows}  # recovered rows come after untuned ones
    base = next(row for row in printed(table) if row.method == BASELINE)
    for (name, _), row in last.items():
        height = -row.lost if row.lost is not None else row.speedup_same_embedding
        seen = axes.get_legend_handles_labels()[1]
        axes.plot(row.macs_ratio, height, **styles[name], label=None if name in seen else name)
        known = beside((table,), row)
        if known is not None:
            own = next((one for one in printed(table) if one.model == row.model and one.method == BASELINE), base)
            old = known.top1 - own.top1 if lost else 1 + (known.gain or 0) / 100
            axes.plot(known.ratio, old, **styles[name], fillstyle="none")
    if lost and axes.get_ylim()[0] < -2 * FAR:  # or the few that fail would press all others together
        axes.set_yscale("symlog", linthresh=FAR)
    axes.set_xlabel("MACs kept")
    axes.set_ylabel("points of top-1 against the host" if lost else "speed over the host with the same embedding")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
