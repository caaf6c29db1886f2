"""Kernels that find which patches stay and which of them the others join; `match` has the functions that they equal.

Each is for one tile of one image: some patches against all of them, a stretch of them at a time. No t × t matrix is
ever in memory, and nothing is sorted: the rank of a number is how many are less.
"""

from typing import Any

import torch
from torch import Tensor

from patchslim.kernels.available import exact, few_rows, operator, tl, triton

TINY, MOST = tl.constexpr(1e-6), tl.constexpr(1e6)
DEAR = tl.constexpr(
    1e38
)  # more than any going costs; what is no number, and what nobody is heavier than, costs as much
UNIT = tl.constexpr(2.0**20)  # weights are handed on in whole numbers of 1 / UNIT: their sums have no order
SIDE, FEW = 64, 16  # patches that a program looks after; of few images, so that there are many programs
COLUMNS = 256  # and so many it looks at at a time, at most
HELD = 64  # channels of features at a time


@triton.jit
def _weight(z, size, patch, t, z_n, WIDTH: tl.constexpr, SIZED: tl.constexpr):  # fmt: skip
    """What patches weigh: the exponential of their last channel, as often as they stand for one."""
    weight = tl.exp(tl.load(z + patch * z_n + WIDTH, mask=patch < t, other=0.0).to(tl.float32))
    if SIZED:
        weight *= tl.load(size + patch, mask=patch < t, other=1.0).to(tl.float32)
    return tl.minimum(tl.maximum(weight, 1 / MOST), MOST)


@triton.jit
def _square(z, row, z_n, t, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Squared lengths."""
    total = tl.zeros([row.shape[0]], tl.float32)
    for begin in range(0, WIDTH, CHANNELS):
        channel = begin + tl.arange(0, CHANNELS)
        inside = (row < t)[:, None] & (channel < WIDTH)[None, :]
        own = tl.load(z + row[:, None] * z_n + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(own * own, axis=1)
    return total


@triton.jit
def _farther(z, row, column, z_n, t, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """Squared distances of a tile of pairs, less the squared length of the row's patch, which is the same for all."""
    product, square = tl.zeros([row.shape[0], column.shape[0]], tl.float32), tl.zeros([column.shape[0]], tl.float32)
    for begin in range(0, WIDTH, CHANNELS):
        channel = begin + tl.arange(0, CHANNELS)
        held = (channel < WIDTH)[None, :]
        own = tl.load(z + row[:, None] * z_n + channel[None, :], mask=(row < t)[:, None] & held, other=0.0)
        far = tl.load(z + column[:, None] * z_n + channel[None, :], mask=(column < t)[:, None] & held, other=0.0)
        product = tl.dot(own, tl.trans(far), product, input_precision=EXACT)
        square += tl.sum(far.to(tl.float32) * far.to(tl.float32), axis=1)
    return square[None, :] - 2 * product


@triton.jit
def find_heavier(
    z, size, weight, gone, gained, parent, cost, z_b, z_n, size_b, t,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr, COLUMNS: tl.constexpr,
    SIZED: tl.constexpr, SECOND: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The nearest heavier one of some patches, and what their going costs. In the second round only those count that
    are still there, and have gained the weight of those that left them as their nearest."""
    image, row = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    z += image * z_b
    if SIZED:
        size += image * size_b
    at, inside = image * t + row, row < t
    mine = _weight(z, size, row, t, z_n, WIDTH, SIZED)
    nearest, which = tl.full([SIDE], float("inf"), tl.float32), tl.zeros([SIDE], tl.int32)
    for begin in range(0, t, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        theirs = _weight(z, size, column, t, z_n, WIDTH, SIZED)
        there = column < t
        if SECOND:
            there = there & (tl.load(gone + image * t + column, mask=there, other=1) == 0)
        theirs = tl.where(there, theirs, 0.0)  # lighter than any
        heavier = (theirs[None, :] > mine[:, None]) | (
            (theirs[None, :] == mine[:, None]) & (column[None, :] < row[:, None])
        )
        far = tl.where(heavier, _farther(z, row, column, z_n, t, WIDTH, CHANNELS, EXACT), float("inf"))
        best, place = tl.min(far, axis=1, return_indices=True, return_indices_tie_break_left=False)
        which = tl.where(best < nearest, begin + place, which)
        nearest = tl.minimum(nearest, best)
    if SECOND:
        mine += tl.load(gained + at, mask=inside, other=0).to(tl.float32) / UNIT
    else:
        tl.store(parent + at, which, mask=inside)
        tl.store(weight + at, mine, mask=inside)
        tl.store(gained + at, tl.zeros([SIDE], tl.int64), mask=inside)
    price = mine * tl.maximum(nearest + _square(z, row, z_n, t, WIDTH, CHANNELS), TINY)
    price = tl.where(price < DEAR, price, DEAR)
    if SECOND:
        price = tl.where(tl.load(gone + at, mask=inside, other=1) != 0, float("inf"), price)
    tl.store(cost + at, price, mask=inside)


@triton.jit
def leave(
    cost, weight, parent, gained, gone, t, count,
    SIDE: tl.constexpr, COLUMNS: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Some patches go if their cost is among so many least ones of the image; of equal ones the first do."""
    image, row = tl.program_id(0).to(tl.int64) * t, tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    inside = row < t
    mine = tl.load(cost + image + row, mask=inside, other=float("inf"))
    rank = tl.zeros([SIDE], tl.int32)
    for begin in range(0, t, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        theirs = tl.load(cost + image + column, mask=column < t, other=float("inf"))[None, :]
        first = column[None, :] < row[:, None]
        rank += tl.sum(((theirs < mine[:, None]) | ((theirs == mine[:, None]) & first)).to(tl.int32), axis=1)
    leaves = (rank < count) & inside
    if SECOND:
        leaves = leaves | (tl.load(gone + image + row, mask=inside, other=0) != 0)
    else:
        own = tl.load(weight + image + row, mask=inside, other=0.0)
        to = tl.load(parent + image + row, mask=inside, other=0)
        tl.atomic_add(gained + image + to, (own * UNIT + 0.5).to(tl.int64), mask=leaves, sem="relaxed")
    tl.store(gone + image + row, leaves.to(tl.int8), mask=inside)


@triton.jit
def join(
    z, size, weight, gone, root, z_b, z_n, size_b, t, n,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr, COLUMNS: tl.constexpr,
    SIZED: tl.constexpr, FIRST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Those of some patches that go join the nearest that stays: of the first n, where it is they that stay."""
    image, row = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    z += image * z_b
    at, inside = image * t + row, row < t
    nearest, which = tl.full([SIDE], float("inf"), tl.float32), tl.zeros([SIDE], tl.int32)
    end = n if FIRST else t
    some = t  # the first that stays: whom those join that are no numbers
    if FIRST and tl.program_id(1) * SIDE + SIDE <= n:
        end = 0  # all of these stay
    for begin in range(0, end, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        there = column < end
        if not FIRST:
            there = there & (tl.load(gone + image * t + column, mask=column < t, other=1) == 0)
        some = tl.minimum(some, tl.min(tl.where(there, column, t), axis=0))
        far = _farther(z, row, column, z_n, t, WIDTH, CHANNELS, EXACT)
        far = tl.where(there[None, :], far, float("inf"))
        best, place = tl.min(far, axis=1, return_indices=True, return_indices_tie_break_left=False)
        which = tl.where(best < nearest, begin + place, which)
        nearest = tl.minimum(nearest, best)
    which = tl.where(nearest < float("inf"), which, some)
    if FIRST:
        goes = row >= n
        if SIZED:
            size += image * size_b
        tl.store(weight + at, _weight(z, size, row, t, z_n, WIDTH, SIZED), mask=inside)
    else:
        goes = tl.load(gone + at, mask=inside, other=0) != 0
    tl.store(root + at, tl.where(goes, which, row), mask=inside)


def _chosen(z: Tensor, size: Tensor | None, n: int, first: bool) -> list[Tensor]:
    """Room for the results."""
    root = z.new_empty(z.shape[:2], dtype=torch.int32)
    return [root, torch.empty_like(root, dtype=torch.float32)]


@operator("patchslim::choose", _chosen)
def choose(z: Tensor, size: Tensor | None, n: int, first: bool) -> list[Tensor]:
    """`match`, or `all_into_first`, of z (B, t, c + 1), whose last channel is the logarithm of what a patch weighs, and
    size (B or 1, t): which patch each of them joins, itself if it stays, and weights, (B, t) both."""
    batch, t, width = z.shape
    root, weight = found = _chosen(z, size, n, first)
    side, columns = FEW if few_rows(z) else SIDE, max(16, min(COLUMNS, triton.next_power_of_2(t)))
    tile: dict[str, Any] = {"SIDE": side, "COLUMNS": columns if width <= HELD else SIDE, "num_warps": 4}
    features = tile | {"WIDTH": width - 1, "CHANNELS": held(width - 1), "SIZED": size is not None}
    features |= {"EXACT": exact(z.dtype)}
    grid, strides = (batch, triton.cdiv(t, side)), (z.stride(0), z.stride(1), _images(size))
    gone = None
    if not first:
        gone, gained = torch.empty_like(root, dtype=torch.int8), torch.empty_like(root, dtype=torch.int64)
        parent, cost = torch.empty_like(root), torch.empty_like(weight)
        for second, count in ((False, (t - n + 1) // 2), (True, (t - n) // 2)):
            find_heavier[grid](z, size, weight, gone, gained, parent, cost, *strides, t, SECOND=second, **features)
            leave[grid](cost, weight, parent, gained, gone, t, count, SECOND=second, **tile)
    join[grid](z, size, weight, gone, root, *strides, t, n, FIRST=first, **features)
    return found


def _images(size: Tensor | None) -> int:
    """From one image's sizes to the next one's; 0 where all have the same."""
    return 0 if size is None or len(size) == 1 else size.stride(0)


def held(width: int) -> int:
    """Channels that a program holds at a time: matrix units want at least 16."""
    return min(HELD, max(16, triton.next_power_of_2(width)))
