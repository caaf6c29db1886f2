"""A picture of the tokens each block computes, every one painted over the patches it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from patchslim.report.kept import shade_removed
from patchslim.report.panels import Line, Panel, draw_panels, over_pixels, patch_size

NOBODY = -1  # the owner of a patch that no token stands for


def draw_sources(
    pictures: Sequence[Tensor], sources: Sequence[Tensor], grid: tuple[int, int], path: Path, title: str = ""
) -> None:
    """Write a PNG with a row per picture (3, H, W) uint8 and a column per block, painted by its tokens.

    `sources` is what `ps.sources` gives: per block a boolean (B, n, N), where row j marks the patches of token
    j. Pictures are in the order of its B images. A last block that computes no patch gets no column.
    """
    shown = list(sources) if bool(sources[-1].any()) else list(sources[:-1])
    rows = []
    for number, picture in enumerate(pictures):
        plain = Panel(shade_removed(picture, range(grid[0] * grid[1]), grid))
        rows.append([plain, *(_panel(picture, block[number].cpu(), grid) for block in shown)])
    names = [f"block {number}\n{_count(block)} tokens" for number, block in enumerate(shown, start=1)]
    draw_panels(rows, ["input", *names], path, title)


def owners(rows: Tensor) -> Tensor:
    """The token that stands for each patch: (n, N) boolean → (N,), NOBODY where there is none."""
    free = ~rows.any(dim=0, keepdim=True)
    return torch.cat([free, rows]).int().argmax(dim=0) + NOBODY  # the free ones are row 0


def paint(picture: Tensor, owner: Tensor, grid: tuple[int, int]) -> Tensor:
    """Every token in the mean colour of its pixels: (3, H, W) uint8, (N,) → (H, W, 3) float in 0 … 1.

    Patches of nobody fade, as those that are not kept do.
    """
    image = shade_removed(picture, (owner != NOBODY).nonzero().flatten().tolist(), grid)
    owner = over_pixels(owner.reshape(grid), patch_size(picture, grid))
    for token in owner[owner != NOBODY].unique():
        image[owner == token] = image[owner == token].mean(dim=0)
    return image


def borders(owner: Tensor, size: tuple[int, int]) -> list[Line]:
    """Edges between neighbouring patches of different tokens: (rows, columns) of tokens → lines in pixels."""
    height, width = size
    lines: list[Line] = []
    for row, column in _differ(owner[:, :-1], owner[:, 1:]):
        x, y = (column + 1) * width - 0.5, row * height - 0.5  # a pixel begins half a pixel before its centre
        lines.append(((x, y), (x, y + height)))
    for row, column in _differ(owner[:-1], owner[1:]):
        x, y = column * width - 0.5, (row + 1) * height - 0.5
        lines.append(((x, y), (x + width, y)))
    return lines


def _differ(one: Tensor, other: Tensor) -> list[list[int]]:
    """(row, column) where both belong to tokens, and not to the same one."""
    found: list[list[int]] = ((one != other) & (one != NOBODY) & (other != NOBODY)).nonzero().tolist()
    return found


def _panel(picture: Tensor, rows: Tensor, grid: tuple[int, int]) -> Panel:
    owner = owners(rows)
    return Panel(paint(picture, owner, grid), borders(owner.reshape(grid), patch_size(picture, grid)))


def _count(block: Tensor) -> str:
    """Tokens of a block (B, n, N), the mean where images differ."""
    return f"{round(float(block.any(dim=2).sum(dim=1).double().mean()), 1):g}"
