"""A picture of the patches each block keeps, over real images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from patchslim.plan import SlimPlan
from patchslim.report.panels import Panel, draw_panels, over_pixels, patch_size

SHADE = 0.75  # how far a removed patch fades towards the background colour
BACKGROUND = torch.tensor([0.86, 0.87, 0.90])


def shade_removed(picture: Tensor, kept: Sequence[int], grid: tuple[int, int]) -> Tensor:
    """Fade the patches that are not kept: (3, H, W) uint8 → (H, W, 3) float in 0 … 1."""
    image = picture.float().div(255).permute(1, 2, 0)
    mask = torch.zeros(grid[0] * grid[1])
    mask[list(kept)] = 1
    mask = over_pixels(mask.reshape(grid), patch_size(picture, grid))[:, :, None]
    image = image[: mask.shape[0], : mask.shape[1]]
    return image * mask + (image * (1 - SHADE) + BACKGROUND * SHADE) * (1 - mask)


def draw_kept(plan: SlimPlan, pictures: Sequence[Tensor], path: Path, title: str = "") -> None:
    """Write a PNG with a row per picture (3, H, W) uint8 and a column per block."""
    grid = (plan.host.grid[0], plan.host.grid[1])
    columns = [list(range(plan.host.patches)), *plan.kept]
    panels = [[Panel(shade_removed(picture, kept, grid)) for kept in columns] for picture in pictures]
    blocks = ["input", *(f"block {block}" for block in range(1, len(columns)))]
    names = [f"{block}\n{len(kept)} patches" for block, kept in zip(blocks, columns, strict=True)]
    draw_panels(panels, names, path, title)
