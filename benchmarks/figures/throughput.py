"""The README's picture of accuracy against speed on a GPU: a line per method through the MAC ratios it was made for.

Rows of results/ are joined by method, settings and ratio. What was not measured is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.inputs import MODEL, PROMISED
from benchmarks.peers.code import OWN
from benchmarks.rows import RESULTS, Row, read_rows
from patchslim.errors import DataError
from patchslim.files import replacing
from patchslim.report.pictures import new_figure

PICTURE = Path(__file__).parents[2] / "docs" / "throughput.png"
BATCHES = {1: "One image at a time", 256: "Batches of 256 images"}
THEIRS = OWN.format("ToMe")
# Colours that differ for colour-blind eyes too (Okabe and Ito); ours are filled, the others' hollow.
COLOURS = {
    "merge": "#0072b2",
    "cover": "#009e73",
    "drop": "#d55e00",
    "tome": "#cc79a7",
    THEIRS: "#7a7a7a",
    "evit": "#b8860b",
}
OURS, NAMES = ("merge", "cover", "drop"), {"tome": "ToMe, ours", THEIRS: "ToMe's code", "evit": "EViT"}
INK, PALE = "#333333", "#bbbbbb"
NEAR: dict[float | None, float] = {PROMISED: 0.55}  # where speed and accuracy were not asked for at the same ratio
WIDE, APART = 0.2, 0.055  # of a panel's width and height: what a label takes


@dataclass(frozen=True)
class Point:
    """A model's speed, in images per second, and its top-1, in percent; the share of MACs that it keeps."""

    speed: float
    top1: float
    ratio: float | None


def joined(rows: Sequence[Row], model: str, batch: int) -> dict[str, list[Point]]:
    """For `host` and each method of the picture: its points, from the most MACs on."""
    own = [row for row in rows if row.model == model and row.reason is None and not row.settings]
    own = [row for row in own if row.image_size == 224 and (row.method == "host" or row.method in COLOURS)]
    fast = [row for row in own if row.question == "speed" and row.threads is None and row.batch_size == batch]
    right = [row for row in own if row.question == "accuracy" and not row.recovery_epochs]
    # The latest that was chosen by the most images counts, measured on the same device if there is one.
    right.sort(key=lambda row: (row.device in {one.device for one in fast}, row.images or 0, row.date))
    top1 = {(row.method, row.target_macs): row.top1 for row in right}
    found: dict[str, list[Point]] = defaultdict(list)
    for row in fast:
        ratio = row.target_macs if (row.method, row.target_macs) in top1 else NEAR.get(row.target_macs)
        known = top1.get((row.method, ratio))
        if known is not None and row.images_per_second is not None:
            found[row.method].append(Point(row.images_per_second, known, row.target_macs))
    return {name: sorted(points, key=lambda point: -(point.ratio or 1)) for name, points in found.items()}


def draw(rows: Sequence[Row], model: str, path: Path) -> None:
    """A panel for each batch size."""
    panels = {batch: joined(rows, model, batch) for batch in BATCHES}
    if not any("host" in found and len(found) > 1 for found in panels.values()):
        raise DataError(f"No rows say both how fast and how accurate methods are on {model}; see `gpu picture`.")
    figure = new_figure(11, 4.8)
    every = [point.top1 for found in panels.values() for points in found.values() for point in points]
    for axes, (batch, found) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        axes.set_ylim(min(every) - 1.2, max(every) + 1.2)
        panel(axes, found)
        axes.set_title(BATCHES[batch], fontsize=11, color=INK, loc="left")
        axes.set_xlabel("images per second", color=INK)
    figure.axes[0].set_ylabel("top-1, %", color=INK)
    figure.supxlabel(caption(panels.values()), fontsize=9.5, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", facecolor="white", dpi=160)


def panel(axes: Any, found: dict[str, list[Point]]) -> None:
    """The host with a line at its speed, and a line for each method, named at its end."""
    for point in found.get("host", []):
        axes.axvline(point.speed, color=PALE, lw=1, ls=(0, (4, 3)), zorder=0)
        axes.plot(point.speed, point.top1, "*", color=INK, ms=13, zorder=4)
        axes.annotate("host", (point.speed, point.top1), (0, 8), textcoords="offset points", ha="center", color=INK)
    methods = {name: found[name] for name in COLOURS if name in found}
    for name, points in methods.items():
        colour, filled = COLOURS[name], name in OURS
        look = {
            "color": colour,
            "lw": 2.2 if filled else 1.5,
            "ls": "-" if filled else "--",
            "zorder": 3 if filled else 2,
        }
        mark = {"marker": "o", "ms": 7, "markerfacecolor": colour if filled else "white", "markeredgewidth": 1.6}
        axes.plot([point.speed for point in points], [point.top1 for point in points], **look, **mark)
    axes.set_xlim(left=0)
    axes.margins(x=0.16)
    axes.autoscale(axis="x")
    axes.set_xlim(left=0)
    label_ends(axes, methods)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(color="#eeeeee", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)


def caption(panels: Iterable[dict[str, list[Point]]]) -> str:
    """What the marks of a line are."""
    every = (point.ratio for found in panels for points in found.values() for point in points)
    ratios = sorted({ratio for ratio in every if ratio is not None}, reverse=True)
    *most, last = [f"{1 - ratio:.0%}".replace("%", " %") for ratio in ratios]
    fewer = f"{', '.join(most)} and {last}" if most else last
    order = ", from the top" if most else ""
    near = " (top-1: 45 %)" if ratios == [PROMISED] else ""
    return f"Marks on a line{order}: {fewer} fewer MACs{near}, without fine-tuning. The star is the model as it comes."


def label_ends(axes: Any, methods: dict[str, list[Point]]) -> None:
    """Each line's name beside its last mark, from below, moved up where it would lie on one that is there already."""
    from matplotlib.patheffects import withStroke

    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    wide, step = WIDE * (right - left), APART * (high - low)
    placed: list[tuple[float, float]] = []
    for name, points in sorted(methods.items(), key=lambda item: item[1][-1].top1):
        speed, height = points[-1].speed, points[-1].top1
        for other, there in placed:
            if abs(other - speed) < wide and abs(there - height) < step:
                height = there + step
        placed.append((speed, height))
        offset, side = ((-9, 0), "right") if name == THEIRS else ((9, 0), "left")  # the slowest: there is room
        style: dict[str, Any] = {
            "color": COLOURS[name],
            "fontsize": 10,
            "fontweight": "bold" if name in OURS else "normal",
        }
        style |= {
            "ha": side,
            "va": "center",
            "zorder": 5,
            "path_effects": [withStroke(linewidth=3, foreground="white")],
        }
        axes.annotate(NAMES.get(name, name), (speed, height), offset, textcoords="offset points", **style)


def throughput(
    model: Annotated[str, typer.Option("--model")] = MODEL,
    rows: Annotated[Path, typer.Option("--rows", help="Folder of the rows.")] = RESULTS,
    out: Annotated[Path, typer.Option("--out", help="The picture.")] = PICTURE,
) -> None:
    """Draw top-1 against throughput at batch 1 and 256, of all methods at all ratios that were measured."""
    draw(list(read_rows(rows)), model, out)
    print(out)
