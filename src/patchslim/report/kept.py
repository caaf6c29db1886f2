"""A picture of the patches each block keeps, over real images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from patchslim.errors import PatchslimError
from patchslim.files import replacing
from patchslim.plan import SlimPlan

SHADE = 0.75  # how far a removed patch fades towards the background colour
BACKGROUND = torch.tensor([0.86, 0.87, 0.90])


def shade_removed(picture: Tensor, kept: Sequence[int], grid: tuple[int, int]) -> Tensor:
    """Fade the patches that are not kept: (3, H, W) uint8 → (H, W, 3) float in 0 … 1."""
    image = picture.float().div(255).permute(1, 2, 0)
    mask = torch.zeros(grid[0] * grid[1])
    mask[list(kept)] = 1
    rows, columns = image.shape[0] // grid[0], image.shape[1] // grid[1]
    mask = mask.reshape(grid).repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:, :, None]
    image = image[: mask.shape[0], : mask.shape[1]]
    return image * mask + (image * (1 - SHADE) + BACKGROUND * SHADE) * (1 - mask)


def draw_kept(plan: SlimPlan, pictures: Sequence[Tensor], path: Path, title: str = "") -> None:
    """Write a PNG with a row per picture (3, H, W) uint8 and a column per block."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PatchslimError("Pictures need matplotlib: pip install 'patchslim[viz]'.") from None
    grid = (plan.host.grid[0], plan.host.grid[1])
    columns = len(plan.kept) + 1
    figure = Figure(figsize=(1.15 * columns, 1.15 * len(pictures) + 0.8), layout="constrained", dpi=150)
    axes = figure.subplots(len(pictures), columns, squeeze=False)
    everything = list(range(plan.host.patches))
    for row, picture in enumerate(pictures):
        for column, kept in enumerate([everything, *plan.kept]):
            axis = axes[row][column]
            axis.imshow(shade_removed(picture, kept, grid).numpy(), interpolation="nearest")
            axis.set_axis_off()
            if row == 0:
                name = "input" if column == 0 else f"block {column}"
                axis.set_title(f"{name}\n{len(kept)} patches", fontsize=7)
    if title:
        figure.suptitle(title, fontsize=9)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
