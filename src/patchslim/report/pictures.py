"""Pictures of what each block computes over some images: the patches it keeps, and the tokens it merges them into."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchslim.errors import PatchslimError
from patchslim.files import replacing
from patchslim.plan import SlimPlan

LINE_COLOUR = "#e8743b"  # neither black, grey nor white, so that it shows on digits too
LINE_WIDTH = 0.5  # points
SHADE = 0.75  # how far a removed patch fades towards the background colour
BACKGROUND = torch.tensor([0.86, 0.87, 0.90])
NOBODY = -1  # the owner of a patch that no token stands for
Line = tuple[tuple[float, float], tuple[float, float]]  # (x, y) to (x, y) in pixels; a pixel's centre is a whole number


@dataclass(frozen=True)
class Panel:
    """One small image (H, W, 3) of floats in 0 … 1, and the lines over it."""

    image: Tensor
    lines: list[Line] = field(default_factory=list)


def draw_kept(plan: SlimPlan, pictures: Sequence[Tensor], path: Path, title: str = "") -> None:
    """Write a PNG with a row per picture (3, H, W) uint8 and a column per block."""
    grid = (plan.host.grid[0], plan.host.grid[1])
    columns = [list(range(plan.host.patches)), *plan.kept]
    panels = [[Panel(shade_removed(picture, kept, grid)) for kept in columns] for picture in pictures]
    blocks = ["input", *(f"block {block}" for block in range(1, len(columns)))]
    names = [f"{block}\n{len(kept)} patches" for block, kept in zip(blocks, columns, strict=True)]
    draw_panels(panels, names, path, title)


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
        rows.append([Panel(shade_removed(picture, range(grid[0] * grid[1]), grid))])
        for owner in (owners(block[number].cpu()) for block in shown):
            lines = borders(owner.reshape(grid), patch_size(picture, grid))
            rows[-1].append(Panel(paint(picture, owner, grid), lines))
    names = [f"block {number}\n{mean_tokens(block):g} tokens" for number, block in enumerate(shown, start=1)]
    draw_panels(rows, ["input", *names], path, title)


def mean_tokens(block: Tensor) -> float:
    """Tokens of a block (B, n, N), on average over the images."""
    return round(float(block.any(dim=2).sum(dim=1).double().mean()), 1)


def patch_size(picture: Tensor, grid: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a patch in pixels: (C, H, W) → (H // rows, W // columns)."""
    return picture.shape[1] // grid[0], picture.shape[2] // grid[1]


def over_pixels(values: Tensor, size: tuple[int, int]) -> Tensor:
    """A value per patch, for every pixel of the patch: (rows, columns) → (rows · height, columns · width)."""
    return values.repeat_interleave(size[0], 0).repeat_interleave(size[1], 1)


def shade_removed(picture: Tensor, kept: Sequence[int], grid: tuple[int, int]) -> Tensor:
    """Fade the patches that are not kept: (3, H, W) uint8 → (H, W, 3) float in 0 … 1."""
    image = picture.float().div(255).permute(1, 2, 0)
    mask = torch.zeros(grid[0] * grid[1])
    mask[list(kept)] = 1
    mask = over_pixels(mask.reshape(grid), patch_size(picture, grid))[:, :, None]
    image = image[: mask.shape[0], : mask.shape[1]]
    return image * mask + (image * (1 - SHADE) + BACKGROUND * SHADE) * (1 - mask)


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


def draw_panels(rows: Sequence[Sequence[Panel]], names: Sequence[str], path: Path, title: str = "") -> None:
    """Write a PNG with a row per sequence of panels; `names` stand over the columns."""
    figure = new_figure(1.15 * len(names), 1.15 * len(rows) + 0.8)
    from matplotlib.collections import LineCollection

    axes = figure.subplots(len(rows), len(names), squeeze=False)
    for axis, panel in zip(axes.flat, chain.from_iterable(rows), strict=True):
        axis.imshow(panel.image.numpy(), interpolation="nearest")
        lines = LineCollection(panel.lines, colors=LINE_COLOUR, linewidths=LINE_WIDTH, capstyle="projecting")
        axis.add_collection(lines, autolim=False)  # the image alone decides what is in view
        axis.set_axis_off()
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
