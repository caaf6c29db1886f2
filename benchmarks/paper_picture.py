"""Pictures of the paper's tables: filled marks are measured, hollow ones published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_cells import NAMES
from patchslim.files import replacing
from patchslim.report.comparison import MARKERS
from patchslim.report.panels import new_figure

Rows = Sequence[Mapping[str, Any]]
COLUMNS = 2  # of panels
FAR = 20  # points lost, from which the axis is a logarithmic one below the half


def draw_blocks(blocks: Rows, path: Path) -> None:
    """A panel for each model: points of top-1 lost against MACs kept where top-1 is known, else the speed-up."""
    shown = [block for block in blocks if block["rows"]]
    if not shown:
        return
    figure = new_figure(6.0 * min(COLUMNS, len(shown)) + 1.5, 4.0 * math.ceil(len(shown) / COLUMNS))
    panels = figure.subplots(math.ceil(len(shown) / COLUMNS), min(COLUMNS, len(shown)), squeeze=False).flatten()
    for axes, block in zip(panels, shown, strict=False):
        _draw(axes, block)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    figure.legend(*_legend(panels), loc="outside right upper", fontsize=7, title="filled: measured\nhollow: published")
    _write(figure, path)


def _draw(axes: Any, block: Mapping[str, Any]) -> None:
    from matplotlib.ticker import FixedLocator

    scored = any(row.get("untuned") for row in block["rows"])
    for row in block["rows"]:
        style = _style(row["method"])
        if row.get("reason") is None and scored:
            state = "recovered" if row.get("recovered") else "untuned"
            axes.plot(row["macs_ratio"], row[state]["against_base"]["difference"], **style)
        elif row.get("reason") is None and "speedup" in row:
            axes.plot(row["macs_ratio"], row["speedup"], **style)
        known = row.get("published")
        if known and block["published"]:
            height = known["top1"] - block["published"]["top1"] if scored else 1 + (known.get("gain") or math.nan) / 100
            axes.plot(known["ratio"], height, **style | {"label": None, "fillstyle": "none"})
    if not scored:
        low, high = axes.get_xlim()
        ratios = [low + (high - low) * place / 50 for place in range(51)]
        axes.plot(ratios, [1 / ratio for ratio in ratios], color="grey", linewidth=0.8, label="promised by the MACs")
    elif axes.get_ylim()[0] < -FAR:  # or the few that fail would press all others together
        axes.set_yscale("symlog", linthresh=FAR / 2)
        axes.yaxis.set_major_locator(FixedLocator([-60, -40, -20, -10, -8, -6, -4, -2, 0]))
        axes.yaxis.set_major_formatter("{x:g}")
    after = ", recovered" if any(row.get("recovered") for row in block["rows"]) else ", untuned"
    axes.set_title(block["model"] + (after if scored else ""), fontsize=9)
    axes.set_xlabel("MACs kept")
    axes.set_ylabel("top-1 against base, points" if scored else "speed-up")
    axes.grid(alpha=0.3)


def _style(method: str) -> dict[str, Any]:
    from matplotlib import colormaps

    place = list(NAMES).index(method)
    colour = colormaps["tab20"](place * 2 % 20 + place // 10)  # strong colours first
    return {"color": colour, "marker": MARKERS[place % len(MARKERS)], "linestyle": "none", "label": NAMES[method]}


def _legend(panels: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Every method once."""
    found: dict[str, Any] = {}
    for axes in panels:
        found |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    return list(found.values()), list(found)


def draw_models(rows: Rows, path: Path) -> None:
    """Table 2: top-1 against MACs, published, and top-1 where it was measured."""
    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    for row in rows:
        known = row["published"]
        colour = "C1" if known["slim"] else "C0"
        axes.plot(known["gmacs"], known["top1"], "o", color=colour, fillstyle="none")
        axes.annotate(
            row["name"], (known["gmacs"], known["top1"]), fontsize=6, xytext=(3, 3), textcoords="offset points"
        )
        best = row.get("recovered") or row.get("top1")
        if best:
            axes.plot(row["macs"] / 1e9, best, "o", color=colour)
    axes.set_xlabel("GMACs")
    axes.set_ylabel("top-1, %: hollow published, filled measured")
    axes.grid(alpha=0.3)
    _write(figure, path)


def _write(figure: Any, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
