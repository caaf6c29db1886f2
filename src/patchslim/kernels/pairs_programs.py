"""Triton kernels that find pairs of patches, as one of their programs sees it; `pairs_triton` launches them.

Movers are patches that may go, targets those that they may join. A pair's similarity is the cosine of both patches, or
1 less their squared distance.
"""

from __future__ import annotations

import triton
import triton.language as tl

from patchslim.kernels.attention_triton import class_row

TINY = tl.constexpr(1e-6)


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
    _write_places(place + image * place_b, mine, every, joined, own, mover, mine_at, target_at, movers, targets, r)


@triton.jit
def _importance(attended, patch, t, heads, n_in):
    """The first token's attention to patches, averaged over heads, over the average patch's share."""
    total = tl.zeros(patch.shape, tl.float32)
    for head in range(heads):
        total += tl.load(attended + head * n_in + patch, mask=patch < t, other=0.0)
    return total * t / heads


@triton.jit
def _write_places(place, mine, every, joined, own, mover, mover_at, target_at, movers, targets, r):
    """By their rank among all movers some pairs join; the others' movers come first, then the targets."""
    rank = _rank_among(mine, tl.where(mover < movers, every, float("inf")), own, mover)
    goes = tl.where(rank < r, joined + movers - r, rank - r)
    tl.store(place + mover_at, goes, mask=own < movers)
    tl.store(place + target_at, own + movers - r, mask=own < targets)


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
