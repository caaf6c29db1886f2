"""Kernels that find pairs of patches, as one of their programs sees it; `match` has the functions that they equal.

Movers are patches that may go, targets those that they may join. A pair's similarity is the cosine of both patches, or
1 less their squared distance.
"""

import torch
from torch import Tensor

from patchslim.kernels.attention import class_row
from patchslim.kernels.available import FEW_ROWS, LINE, exact, tl, triton

TINY = tl.constexpr(1e-6)
OWN = 32  # pairs whose rank one program finds, and patches that it ranks at once
# Ranks compare costs that are computed twice. Rounded once here and twice there, a patch would rank before itself, two
# would go to one place, and one place would stay empty.
EXACT_RANKS = {"enable_fp_fusion": False, "num_warps": 4}


@triton.jit
def find_nearest(
    z, similarity, nearest,
    z_b, z_h, z_n, found_b, heads, movers, targets, parts,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, ANY: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One tile of one image's pairs: of an even patch and an odd one, by direction, or of any two, by distance."""
    image, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _first_tile(
        z + image * z_b, similarity + image * found_b, nearest + image * found_b,
        tile // parts, tile % parts, z_h, z_n, heads, movers, targets, WIDTH, SIDE, CHANNELS, ANY, EXACT,
    )  # fmt: skip


@triton.jit
def find_nearest_and_attend(
    q, k, z, size, attended, similarity, nearest,
    q_b, q_h, k_b, k_h, k_n, z_b, z_n, size_b, found_b, heads, movers, targets, parts, n_in, scale,
    KEY_WIDTH: tl.constexpr, KEY_CHANNELS: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One such tile of any two patches, or the first token's attention in one head: neither waits for the other."""
    image, own = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if own < heads:
        class_row(
            q + image * q_b + own * q_h, k + image * k_b + own * k_h, size + image * size_b,
            attended + (image * heads + own) * n_in, k_n, n_in, scale, KEY_WIDTH, KEYS, KEY_CHANNELS,
        )  # fmt: skip
    else:
        tile = own - heads
        _first_tile(
            z + image * z_b, similarity + image * found_b, nearest + image * found_b,
            tile // parts, tile % parts, 0, z_n, 1, movers, targets, WIDTH, SIDE, CHANNELS, True, EXACT,
        )  # fmt: skip


@triton.jit
def _first_tile(
    z, similarity, nearest, which, part, z_h, z_n, heads, movers, targets,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, ANY: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Patches as they come: even ones and odd ones, or all and all."""
    mover, target = which * SIDE + tl.arange(0, SIDE), part * SIDE + tl.arange(0, SIDE)
    row, column = (mover, target) if ANY else (2 * mover, 2 * target + 1)
    _nearest_tile(
        z, similarity, nearest, row, column, mover, target, part, z_h, z_n, heads, movers, targets,
        WIDTH, SIDE, CHANNELS, not ANY, EXACT,
    )  # fmt: skip


@triton.jit
def find_lighter(
    z, any_similarity, any_nearest, attended, order, importance, weight, similarity, nearest,
    z_b, z_n, any_b, attended_b, found_b, t, heads, n_in, prefix, any_parts, movers, targets, parts, floor,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, PATCHES: tl.constexpr, OWN: tl.constexpr,
    CLASSED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One tile of one image's pairs, of a patch from the lighter half and one from the other.

    Every program finds out for itself which those are: by how many patches weigh less beside their nearest. It also
    stores that order, and what each patch weighs.
    """
    image, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    z, any_similarity, any_nearest = z + image * z_b, any_similarity + image * any_b, any_nearest + image * any_b
    if CLASSED:
        attended += image * attended_b + prefix
    mover, target = tile // parts * SIDE + tl.arange(0, SIDE), tile % parts * SIDE + tl.arange(0, SIDE)
    row, column = tl.zeros([SIDE], tl.int32), tl.zeros([SIDE], tl.int32)
    patch = tl.arange(0, PATCHES)
    every = _relative_weight(
        any_similarity, any_nearest, z + WIDTH, attended, patch, z_n, t, heads, n_in, any_parts, floor, CLASSED
    )
    every = tl.where(patch < t, every, float("inf"))
    heavy = _weight(z + WIDTH, attended, patch, z_n, t, heads, n_in, floor, CLASSED)
    tl.store(weight + image * t + patch, heavy, mask=patch < t)
    if CLASSED:
        tl.store(importance + image * t + patch, _importance(attended, patch, t, heads, n_in), mask=patch < t)
    for start in range(0, t, OWN):
        own = start + tl.arange(0, OWN)
        mine = _relative_weight(
            any_similarity, any_nearest, z + WIDTH, attended, own, z_n, t, heads, n_in, any_parts, floor, CLASSED
        )
        rank = tl.where(own < t, _rank_among(mine, every, own, patch), -1)
        row += tl.sum(tl.where(rank[None, :] == mover[:, None], own[None, :], 0), axis=1)
        column += tl.sum(tl.where(rank[None, :] == (movers + target)[:, None], own[None, :], 0), axis=1)
    row, column = tl.minimum(row, t - 1), tl.minimum(column, t - 1)  # weights that are no numbers have no order
    tl.store(order + image * t + mover, row, mask=mover < movers)
    tl.store(order + image * t + movers + target, column, mask=target < targets)
    _nearest_tile(
        z, similarity + image * found_b, nearest + image * found_b, row, column, mover, target,
        tile % parts, 0, z_n, 1, movers, targets, WIDTH, SIDE, CHANNELS, False, EXACT,
    )  # fmt: skip


@triton.jit
def _relative_weight(
    similarity, nearest, log_weight, attended, patch, log_n, t, heads, n_in, parts, floor, CLASSED: tl.constexpr
):  # fmt: skip
    """What patches weigh beside the one nearest to each."""
    _, near = _nearest_of_all(similarity, nearest, patch, t, parts)
    weight = _weight(log_weight, attended, patch, log_n, t, heads, n_in, floor, CLASSED)
    return weight / _weight(log_weight, attended, near, log_n, t, heads, n_in, floor, CLASSED)


@triton.jit
def _weight(log_weight, attended, patch, log_n, t, heads, n_in, floor, CLASSED: tl.constexpr):
    """`match.learnt_weight`."""
    weight = tl.exp(tl.load(log_weight + patch * log_n, mask=patch < t, other=0.0).to(tl.float32))
    if CLASSED:
        important = _importance(attended, patch, t, heads, n_in) + floor
        weight *= important * important
    return weight


@triton.jit
def _nearest_tile(
    z, similarity, nearest, row, column, mover, target, part,
    z_h, z_n, heads, movers, targets,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, DIRECTED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Some patches of one image, `row`, and some others, `column`: how similar the nearest of these is, and which.

    They have numbers of their own, `mover` and `target`. Similarity is the cosine where only directions count, else 1
    less the squared distance.
    """
    channel = tl.arange(0, CHANNELS)
    goes, stays, known = (mover < movers)[:, None], (target < targets)[:, None], (channel < WIDTH)[None, :]
    product = tl.zeros([SIDE, SIDE], tl.float32)
    square, other = tl.zeros([SIDE, CHANNELS], tl.float32), tl.zeros([SIDE, CHANNELS], tl.float32)
    for head in range(heads):
        own = tl.load(z + head * z_h + row[:, None] * z_n + channel[None, :], mask=goes & known, other=0.0)
        near = tl.load(z + head * z_h + column[:, None] * z_n + channel[None, :], mask=stays & known, other=0.0)
        product += tl.dot(own, tl.trans(near), input_precision=EXACT)
        wide, away = own.to(tl.float32), near.to(tl.float32)
        square += wide * wide  # added up once, at the end
        other += away * away
    square, other = tl.sum(square, axis=1), tl.sum(other, axis=1)
    if DIRECTED:
        length, far = tl.maximum(tl.sqrt(square), 1e-12), tl.maximum(tl.sqrt(other), 1e-12)
        similar = product / length[:, None] / far[None, :]
    else:
        similar = 1 - (square[:, None] + other[None, :] - 2 * product)
    others = (target < targets)[None, :] & (row[:, None] != column[None, :])  # no patch is its own nearest
    most, place = tl.max(tl.where(others, similar, float("-inf")), axis=1, return_indices=True)
    found = part * movers + mover
    tl.store(similarity + found, most, mask=mover < movers)
    tl.store(nearest + found, place + part * SIDE, mask=mover < movers)


@triton.jit
def rank_pairs(
    similarity, nearest, weight, order, place,
    found_b, weight_b, place_b, movers, targets, parts, r,
    OWN: tl.constexpr, MOVERS: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """Some pairs of one image: where both patches go. `weight` is how much each patch matters.

    `order` has the movers, then the targets, where it is not the even patches and the odd ones.
    """
    image, own, mover = tl.program_id(0).to(tl.int64), tl.program_id(1) * OWN + tl.arange(0, OWN), tl.arange(0, MOVERS)
    similarity, nearest, weight = similarity + image * found_b, nearest + image * found_b, weight + image * weight_b
    mine_at, every_at, target_at = 2 * own, 2 * mover, 2 * own + 1
    if ORDERED:
        order += image * (movers + targets)
        mine_at = tl.load(order + own, mask=own < movers, other=0)
        every_at = tl.load(order + mover, mask=mover < movers, other=0)
        target_at = tl.load(order + movers + own, mask=own < targets, other=0)
    near, joined = _nearest_of_all(similarity, nearest, own, movers, parts)
    mine = _cost(near, tl.load(weight + mine_at, mask=own < movers, other=0.0))
    near, _ = _nearest_of_all(similarity, nearest, mover, movers, parts)
    every = _cost(near, tl.load(weight + every_at, mask=mover < movers, other=0.0))
    place += image * place_b
    rank = _rank_among(mine, tl.where(mover < movers, every, float("inf")), own, mover)
    goes = tl.where(rank < r, joined + movers - r, rank - r)  # the other movers come first, then the targets
    tl.store(place + mine_at, goes, mask=own < movers)
    tl.store(place + target_at, own + movers - r, mask=own < targets)


@triton.jit
def _importance(attended, patch, t, heads, n_in):
    """The first token's attention to patches, averaged over heads, over the average patch's share."""
    total = tl.zeros(patch.shape, tl.float32)
    for head in range(heads):
        total += tl.load(attended + head * n_in + patch, mask=patch < t, other=0.0)
    return total * t / heads


@triton.jit
def _rank_among(mine, every, own, other):
    """The rank of some values among all: a count of smaller ones, so no sort. Ties go by place, `own` and `other`."""
    tied = (every[None, :] == mine[:, None]) & (other[None, :] < own[:, None])
    return tl.sum(((every[None, :] < mine[:, None]) | tied).to(tl.int32), axis=1)


@triton.jit
def _nearest_of_all(similarity, nearest, mover, movers, parts):
    """The nearest of all, from the nearest of every part of them: how similar, and which."""
    inside = mover < movers
    most = tl.load(similarity + mover, mask=inside, other=0.0)
    place = tl.load(nearest + mover, mask=inside, other=0)
    for part in range(1, parts):
        near = tl.load(similarity + part * movers + mover, mask=inside, other=0.0)
        which = tl.load(nearest + part * movers + mover, mask=inside, other=0)
        place = tl.where(near > most, which, place)
        most = tl.maximum(most, near)
    return most, place


@triton.jit
def _cost(near, weight):
    """What a merge costs: weight times distance."""
    return weight * tl.maximum(1 - near, TINY)


class Search:
    """The nearest to each patch of one half, or to each patch, by the first channels of z (B, h, t, c): sizes of the
    search, and room for what it finds."""

    def __init__(self, z: Tensor, width: int, any_two: bool = False) -> None:
        batch, self.heads, t, _ = z.shape
        channels = held(width)
        self.movers, self.targets = (t, t) if any_two else ((t + 1) // 2, t // 2)  # those that look, and among so many
        side = side_for(batch * t, self.movers, channels * z.element_size())
        self.parts = triton.cdiv(self.targets, side)  # tiles along the targets
        self.tiles, self.warps = triton.cdiv(self.movers, side) * self.parts, warps_for(side)
        self.tile = {"WIDTH": width, "SIDE": side, "CHANNELS": channels, "EXACT": exact(z.dtype)}
        self.similarity = z.new_empty(batch, self.parts, self.movers, dtype=torch.float32)
        self.nearest = torch.empty_like(self.similarity, dtype=torch.int32)
        self.stride = self.parts * self.movers  # from one image to the next in what is found
        self.any_two = any_two

    def find_nearest(self, z: Tensor) -> None:
        """The nearest in every tile."""
        find_nearest[(len(z), self.tiles)](
            z, self.similarity, self.nearest,
            *z.stride()[:3], self.stride, self.heads, self.movers, self.targets, self.parts,
            ANY=self.any_two, **self.tile, num_warps=self.warps,
        )  # fmt: skip

    def rank(self, weight: Tensor, order: Tensor | None, place: Tensor, n: int) -> None:
        """weight, place (B, t); order likewise, or None for the even patches and the odd ones."""
        batch, t = place.shape
        rank_pairs[(batch, triton.cdiv(self.movers, OWN))](
            self.similarity, self.nearest, weight, order, place,
            self.stride, weight.stride(0), place.stride(0), self.movers, self.targets, self.parts, t - n,
            OWN=OWN, MOVERS=triton.next_power_of_2(self.movers), ORDERED=order is not None, **EXACT_RANKS,
        )  # fmt: skip


def held(width: int) -> int:
    """What a program holds of a line: matrix units want at least 16."""
    return max(16, triton.next_power_of_2(width))


def side_for(tokens: int, movers: int, line: int) -> int:
    """Patches that one program compares with as many others, the fastest of a dozen on an H200 for keys: few for few
    tokens of a batch, so that there are many programs; else all of an image where lines of so many bytes fit."""
    if tokens <= FEW_ROWS:
        return 16
    fits = 128 if line <= LINE // 2 else 64 if line <= LINE else 32
    return min(fits, 128 if movers > 64 else 64)


def warps_for(side: int) -> int:
    """Groups of threads for it."""
    return max(2, side // 16)
