"""What the pictures share: rows of small images under one title, written as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from patchslim.errors import PatchslimError
from patchslim.files import replacing

LINE_COLOUR = "#e8743b"  # neither black, grey nor white, so that it shows on digits too
LINE_WIDTH = 0.5  # points
Line = tuple[tuple[float, float], tuple[float, float]]  # (x, y) to (x, y) in pixels; a pixel's centre is a whole number


@dataclass(frozen=True)
class Panel:
    """One small image (H, W, 3) of floats in 0 … 1, and the lines over it."""

    image: Tensor
    lines: list[Line] = field(default_factory=list)


def patch_size(picture: Tensor, grid: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a patch in pixels: (C, H, W) → (H // rows, W // columns)."""
    return picture.shape[1] // grid[0], picture.shape[2] // grid[1]


def over_pixels(values: Tensor, size: tuple[int, int]) -> Tensor:
    """A value per patch, for every pixel of the patch: (rows, columns) → (rows · height, columns · width)."""
    return values.repeat_interleave(size[0], 0).repeat_interleave(size[1], 1)


def draw_panels(rows: Sequence[Sequence[Panel]], names: Sequence[str], path: Path, title: str = "") -> None:
    """Write a PNG with a row per sequence of panels (H, W, 3); `names` stand over the columns."""
    figure = new_figure(1.15 * len(names), 1.15 * len(rows) + 0.8)
    axes = figure.subplots(len(rows), len(names), squeeze=False)
    for row, panels in enumerate(rows):
        for axis, panel in zip(axes[row], panels, strict=True):
            _draw(axis, panel)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name, fontsize=7)
    if title:
        figure.suptitle(title, fontsize=9)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PatchslimError("Pictures need matplotlib: pip install 'patchslim[viz]'.") from None
    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def _draw(axis: Any, panel: Panel) -> None:
    from matplotlib.collections import LineCollection

    axis.imshow(panel.image.numpy(), interpolation="nearest")
    lines = LineCollection(panel.lines, colors=LINE_COLOUR, linewidths=LINE_WIDTH, capstyle="projecting")
    axis.add_collection(lines, autolim=False)  # the image alone decides what is in view
    axis.set_axis_off()
