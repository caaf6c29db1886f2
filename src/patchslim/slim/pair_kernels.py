"""Triton kernels that find pairs of patches: what `merge.match` says in many tensor operations, in two launches. It is
what they are tested against, and what runs where they can't."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from patchslim.hosts.fast import FEW_ROWS, operator
from patchslim.hosts.kernels import LINE, class_row, dense, exact

TINY = tl.constexpr(1e-6)
OWN = 32  # pairs whose rank one program finds
# Ranks compare costs that are computed twice. Rounded once here and twice there, a patch would rank before itself, two
# would go to one place, and one place would stay empty.
EXACT_RANKS = {"enable_fp_fusion": False, "num_warps": 4}


@triton.jit
def _nearest(
    k, alike, nearest,
    k_b, k_h, k_n, found_b, heads, movers, hosts, parts, prefix,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One tile of one image's pairs."""
    image, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _nearest_tile(
        k + image * k_b + prefix * k_n, alike + image * found_b, nearest + image * found_b,
        tile // parts, tile % parts, k_h, k_n, heads, movers, hosts, WIDTH, SIDE, CHANNELS, EXACT,
    )  # fmt: skip


@triton.jit
def _look(
    q, k, size, heed, alike, nearest,
    q_b, q_h, k_b, k_h, k_n, size_b, found_b, heads, movers, hosts, parts, prefix, n_in, scale,
    WIDTH: tl.constexpr, KEYS: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One tile of one image's pairs, or the first token's attention in one head: neither waits for the other."""
    image, own = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if own < heads:
        class_row(
            q + image * q_b + own * q_h, k + image * k_b + own * k_h, size + image * size_b,
            heed + (image * heads + own) * n_in, k_n, n_in, scale, WIDTH, KEYS, CHANNELS,
        )  # fmt: skip
    else:
        tile = own - heads
        _nearest_tile(
            k + image * k_b + prefix * k_n, alike + image * found_b, nearest + image * found_b,
            tile // parts, tile % parts, k_h, k_n, heads, movers, hosts, WIDTH, SIDE, CHANNELS, EXACT,
        )  # fmt: skip


@triton.jit
def _nearest_tile(
    k, alike, nearest, which, part,
    k_h, k_n, heads, movers, hosts,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Some even patches of one image and some odd ones: how alike the nearest of these is, and which."""
    mover, host = which * SIDE + tl.arange(0, SIDE), part * SIDE + tl.arange(0, SIDE)
    channel = tl.arange(0, CHANNELS)
    even, odd, known = (mover < movers)[:, None], (host < hosts)[:, None], (channel < WIDTH)[None, :]
    product = tl.zeros([SIDE, SIDE], tl.float32)
    square, other = tl.zeros([SIDE, CHANNELS], tl.float32), tl.zeros([SIDE, CHANNELS], tl.float32)
    for head in range(heads):
        own = tl.load(k + head * k_h + 2 * mover[:, None] * k_n + channel[None, :], mask=even & known, other=0.0)
        near = tl.load(k + head * k_h + (2 * host[:, None] + 1) * k_n + channel[None, :], mask=odd & known, other=0.0)
        product += tl.dot(own, tl.trans(near), input_precision=EXACT)
        wide, far = own.to(tl.float32), near.to(tl.float32)
        square += wide * wide  # added up once, at the end
        other += far * far
    length, distance = tl.sqrt(tl.sum(square, axis=1)), tl.sqrt(tl.sum(other, axis=1))
    similar = product / tl.maximum(length, 1e-12)[:, None] / tl.maximum(distance, 1e-12)[None, :]
    similar = tl.where((host < hosts)[None, :], similar, float("-inf"))
    most, place = tl.max(similar, axis=1, return_indices=True)
    row = part * movers + mover
    tl.store(alike + row, most, mask=mover < movers)
    tl.store(nearest + row, place + part * SIDE, mask=mover < movers)


@triton.jit
def _rank(
    alike, nearest, weight, place,
    found_b, weight_b, place_b, movers, hosts, parts, r,
    OWN: tl.constexpr, MOVERS: tl.constexpr,
):  # fmt: skip
    """Some pairs of one image: where both patches go. `weight` is how much each patch matters."""
    image, own, mover = tl.program_id(0).to(tl.int64), tl.program_id(1) * OWN + tl.arange(0, OWN), tl.arange(0, MOVERS)
    alike, nearest, weight = alike + image * found_b, nearest + image * found_b, weight + image * weight_b
    near, joined = _found(alike, nearest, own, movers, parts)
    mine = _cost(near, tl.load(weight + 2 * own, mask=own < movers, other=0.0))
    near, _ = _found(alike, nearest, mover, movers, parts)
    every = _cost(near, tl.load(weight + 2 * mover, mask=mover < movers, other=0.0))
    _place(place + image * place_b, mine, every, joined, own, mover, movers, hosts, r)


@triton.jit
def _rank_by_class(
    alike, nearest, heed, importance, place,
    found_b, heed_b, t, heads, n_in, prefix, movers, hosts, parts, r, floor,
    OWN: tl.constexpr, MOVERS: tl.constexpr,
):  # fmt: skip
    """The same, where a patch weighs the more the more the first token attends to it, which is told too."""
    image, own, mover = tl.program_id(0).to(tl.int64), tl.program_id(1) * OWN + tl.arange(0, OWN), tl.arange(0, MOVERS)
    alike, nearest, heed = alike + image * found_b, nearest + image * found_b, heed + image * heed_b + prefix
    even, odd = _mean(heed, 2 * own, t, heads, n_in), _mean(heed, 2 * own + 1, t, heads, n_in)
    tl.store(importance + image * t + 2 * own, even, mask=own < movers)
    tl.store(importance + image * t + 2 * own + 1, odd, mask=own < hosts)
    near, joined = _found(alike, nearest, own, movers, parts)
    mine = _cost(near, even + floor)
    near, _ = _found(alike, nearest, mover, movers, parts)
    every = _cost(near, _mean(heed, 2 * mover, t, heads, n_in) + floor)
    _place(place + image * t, mine, every, joined, own, mover, movers, hosts, r)


@triton.jit
def _mean(heed, patch, t, heads, n_in):
    """The first token's attention to patches, averaged over heads, over the average patch's share."""
    total = tl.zeros(patch.shape, tl.float32)
    for head in range(heads):
        total += tl.load(heed + head * n_in + patch, mask=patch < t, other=0.0)
    return total * t / heads


@triton.jit
def _place(place, mine, every, joined, own, mover, movers, hosts, r):
    """By their rank among all movers some pairs join; the others' movers come first, then the odd patches."""
    every = tl.where(mover < movers, every, float("inf"))
    # A rank is a count of cheaper ones: no sort, and ties go by place.
    tied = (every[None, :] == mine[:, None]) & (mover[None, :] < own[:, None])
    rank = tl.sum(((every[None, :] < mine[:, None]) | tied).to(tl.int32), axis=1)
    goes = tl.where(rank < r, joined + movers - r, rank - r)
    tl.store(place + 2 * own, goes, mask=own < movers)
    tl.store(place + 2 * own + 1, own + movers - r, mask=own < hosts)


@triton.jit
def _found(alike, nearest, mover, movers, parts):
    """The nearest of all odd patches, from the nearest of every part of them: how alike, and which."""
    inside = mover < movers
    most = tl.load(alike + mover, mask=inside, other=0.0)
    place = tl.load(nearest + mover, mask=inside, other=0)
    for part in range(1, parts):
        near = tl.load(alike + part * movers + mover, mask=inside, other=0.0)
        which = tl.load(nearest + part * movers + mover, mask=inside, other=0)
        place = tl.where(near > most, which, place)
        most = tl.maximum(most, near)
    return most, place


@triton.jit
def _cost(near, weight):
    """What a merge costs: weight times distance."""
    return weight * tl.maximum(1 - near, TINY)


class _Pairs(NamedTuple):
    """Sizes of a search for pairs, and room for what it finds."""

    movers: int  # even patches
    hosts: int  # odd ones
    side: int  # of a tile
    parts: int  # tiles along the odd ones
    tiles: int
    channels: int
    alike: Tensor  # (B, parts, movers)
    nearest: Tensor  # likewise


def _pairs(k: Tensor, prefix: int) -> _Pairs:
    """For keys (B, H, p + t, d_h)."""
    batch, _, tokens, width = k.shape
    movers, hosts = (tokens - prefix + 1) // 2, (tokens - prefix) // 2
    channels = max(16, triton.next_power_of_2(width))
    side = _side(batch * tokens, movers, channels * k.element_size())
    parts = triton.cdiv(hosts, side)
    alike = k.new_empty(batch, parts, movers, dtype=torch.float32)
    tiles = triton.cdiv(movers, side) * parts
    return _Pairs(movers, hosts, side, parts, tiles, channels, alike, torch.empty_like(alike, dtype=torch.int32))


def _places(k: Tensor, weight: Tensor, prefix: int, n: int) -> Tensor:
    """Room for the result."""
    return k.new_empty(k.shape[0], k.shape[2] - prefix, dtype=torch.int32)


@operator("patchslim::pair", _places)
def pair(k: Tensor, weight: Tensor, prefix: int, n: int) -> Tensor:
    """Where every patch goes when `n` stay: k (B, H, p + t, d_h), weight (B, t) in fp32 → (B, t) places among the n.
    Pairs by similarity of keys; those of least weight times distance become one."""
    batch, heads, tokens, width = k.shape
    k, weight, place = dense(k), dense(weight), _places(k, weight, prefix, n)
    own = _pairs(k, prefix)
    found_b = own.parts * own.movers
    with torch.cuda.device_of(k):  # a launch goes to the current device
        _nearest[(batch, own.tiles)](
            k, own.alike, own.nearest,
            *k.stride()[:3], found_b, heads, own.movers, own.hosts, own.parts, prefix,
            WIDTH=width, SIDE=own.side, CHANNELS=own.channels, EXACT=exact(k.dtype), num_warps=_warps(own.side),
        )  # fmt: skip
        _rank[(batch, triton.cdiv(own.movers, OWN))](
            own.alike, own.nearest, weight, place,
            found_b, weight.stride(0), place.stride(0), own.movers, own.hosts, own.parts, tokens - prefix - n,
            OWN=OWN, MOVERS=triton.next_power_of_2(own.movers), **EXACT_RANKS,
        )  # fmt: skip
    return place


def _weighed(
    q: Tensor, k: Tensor, size: Tensor, scale: float, prefix: int, n: int, floor: float
) -> tuple[Tensor, Tensor]:
    """Room for both results."""
    shape = k.shape[0], k.shape[2] - prefix
    return k.new_empty(shape, dtype=torch.int32), k.new_empty(shape, dtype=torch.float32)


@operator("patchslim::pair_by_class", _weighed)
def pair_by_class(
    q: Tensor, k: Tensor, size: Tensor, scale: float, prefix: int, n: int, floor: float
) -> tuple[Tensor, Tensor]:
    """The same where a patch weighs its importance plus `floor`; importance comes along: the first token's attention to
    it, averaged over heads, mean 1. q (B, H, 1, d_h), k (B, H, p + t, d_h), size (B or 1, p + t) → twice (B, t)."""
    batch, heads, tokens, width = k.shape
    q, k, size, t = dense(q), dense(k), dense(size), tokens - prefix
    place, importance = _weighed(q, k, size, scale, prefix, n, floor)
    own, heed = _pairs(k, prefix), k.new_empty(batch, heads, tokens, dtype=torch.float32)
    found_b = own.parts * own.movers
    with torch.cuda.device_of(k):  # a launch goes to the current device
        _look[(batch, heads + own.tiles)](
            q, k, size, heed, own.alike, own.nearest,
            q.stride(0), q.stride(1), *k.stride()[:3], size.stride(0) if size.shape[0] > 1 else 0, found_b,
            heads, own.movers, own.hosts, own.parts, prefix, tokens, scale,
            WIDTH=width, KEYS=triton.next_power_of_2(tokens), SIDE=own.side, CHANNELS=own.channels,
            EXACT=exact(k.dtype), num_warps=max(4, _warps(own.side)),
        )  # fmt: skip
        _rank_by_class[(batch, triton.cdiv(own.movers, OWN))](
            own.alike, own.nearest, heed, importance, place,
            found_b, heads * tokens, t, heads, tokens, prefix, own.movers, own.hosts, own.parts, t - n, floor,
            OWN=OWN, MOVERS=triton.next_power_of_2(own.movers), **EXACT_RANKS,
        )  # fmt: skip
    return place, importance


def _side(tokens: int, movers: int, line: int) -> int:
    """Even patches that one program compares with as many odd ones, the fastest of a dozen on an H200: few for few
    tokens of a batch, so that there are many programs; else all of an image where lines of so many bytes fit."""
    if tokens <= FEW_ROWS:
        return 16
    fits = 128 if line <= LINE // 2 else 64 if line <= LINE else 32
    return min(fits, 128 if movers > 64 else 64)


def _warps(side: int) -> int:
    """Groups of threads for it."""
    return max(2, side // 16)
