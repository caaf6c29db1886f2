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
    z, alike, nearest,
    z_b, z_h, z_n, found_b, heads, movers, hosts, parts,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, DIRECTED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One tile of one image's pairs."""
    image, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _nearest_tile(
        z + image * z_b, alike + image * found_b, nearest + image * found_b,
        tile // parts, tile % parts, z_h, z_n, heads, movers, hosts, WIDTH, SIDE, CHANNELS, DIRECTED, EXACT,
    )  # fmt: skip


@triton.jit
def _look(
    q, k, z, size, heed, alike, nearest,
    q_b, q_h, k_b, k_h, k_n, z_b, z_h, z_n, size_b, found_b, heads, kinds, movers, hosts, parts, n_in, scale,
    KEY_WIDTH: tl.constexpr, KEY_CHANNELS: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, DIRECTED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One tile of one image's pairs, or the first token's attention in one head: neither waits for the other."""
    image, own = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if own < heads:
        class_row(
            q + image * q_b + own * q_h, k + image * k_b + own * k_h, size + image * size_b,
            heed + (image * heads + own) * n_in, k_n, n_in, scale, KEY_WIDTH, KEYS, KEY_CHANNELS,
        )  # fmt: skip
    else:
        tile = own - heads
        _nearest_tile(
            z + image * z_b, alike + image * found_b, nearest + image * found_b,
            tile // parts, tile % parts, z_h, z_n, kinds, movers, hosts, WIDTH, SIDE, CHANNELS, DIRECTED, EXACT,
        )  # fmt: skip


@triton.jit
def _nearest_tile(
    z, alike, nearest, which, part,
    z_h, z_n, heads, movers, hosts,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr, DIRECTED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Some even patches of one image and some odd ones: how alike the nearest of these is, and which. Alike is the
    cosine where only directions count, else 1 less the squared distance."""
    mover, host = which * SIDE + tl.arange(0, SIDE), part * SIDE + tl.arange(0, SIDE)
    channel = tl.arange(0, CHANNELS)
    even, odd, known = (mover < movers)[:, None], (host < hosts)[:, None], (channel < WIDTH)[None, :]
    product = tl.zeros([SIDE, SIDE], tl.float32)
    square, other = tl.zeros([SIDE, CHANNELS], tl.float32), tl.zeros([SIDE, CHANNELS], tl.float32)
    for head in range(heads):
        own = tl.load(z + head * z_h + 2 * mover[:, None] * z_n + channel[None, :], mask=even & known, other=0.0)
        near = tl.load(z + head * z_h + (2 * host[:, None] + 1) * z_n + channel[None, :], mask=odd & known, other=0.0)
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


def _pairs(z: Tensor) -> _Pairs:
    """For what patches are compared by, (B, h, t, c)."""
    batch, _, patches, width = z.shape
    movers, hosts = (patches + 1) // 2, patches // 2
    channels = _channels(width)
    side = _side(batch * patches, movers, channels * z.element_size())
    parts = triton.cdiv(hosts, side)
    alike = z.new_empty(batch, parts, movers, dtype=torch.float32)
    tiles = triton.cdiv(movers, side) * parts
    return _Pairs(movers, hosts, side, parts, tiles, channels, alike, torch.empty_like(alike, dtype=torch.int32))


def _channels(width: int) -> int:
    """What a program holds of a line: matrix units want at least 16."""
    return max(16, int(triton.next_power_of_2(width)))


def _places(z: Tensor, weight: Tensor, n: int, directed: bool) -> Tensor:
    """Room for the result."""
    return z.new_empty(z.shape[0], z.shape[2], dtype=torch.int32)


@operator("patchslim::pair", _places)
def pair(z: Tensor, weight: Tensor, n: int, directed: bool) -> Tensor:
    """Where every patch goes when `n` stay: z (B, h, t, c), weight (B, t) in fp32 → (B, t) places among the n.
    Every even patch and the odd one nearest to it, by direction or by distance; those pairs of least weight times
    distance become one."""
    batch, heads, patches, width = z.shape
    z, weight, place = dense(z), dense(weight), _places(z, weight, n, directed)
    own = _pairs(z)
    found_b = own.parts * own.movers
    with torch.cuda.device_of(z):  # a launch goes to the current device
        _nearest[(batch, own.tiles)](
            z, own.alike, own.nearest,
            *z.stride()[:3], found_b, heads, own.movers, own.hosts, own.parts,
            WIDTH=width, SIDE=own.side, CHANNELS=own.channels, DIRECTED=directed, EXACT=exact(z.dtype),
            num_warps=_warps(own.side),
        )  # fmt: skip
        _rank[(batch, triton.cdiv(own.movers, OWN))](
            own.alike, own.nearest, weight, place,
            found_b, weight.stride(0), place.stride(0), own.movers, own.hosts, own.parts, patches - n,
            OWN=OWN, MOVERS=triton.next_power_of_2(own.movers), **EXACT_RANKS,
        )  # fmt: skip
    return place


def _weighed(
    q: Tensor, k: Tensor, z: Tensor, size: Tensor, scale: float, n: int, floor: float, directed: bool
) -> tuple[Tensor, Tensor]:
    """Room for both results."""
    shape = z.shape[0], z.shape[2]
    return k.new_empty(shape, dtype=torch.int32), k.new_empty(shape, dtype=torch.float32)


@operator("patchslim::pair_by_class", _weighed)
def pair_by_class(
    q: Tensor, k: Tensor, z: Tensor, size: Tensor, scale: float, n: int, floor: float, directed: bool
) -> tuple[Tensor, Tensor]:
    """The same where a patch weighs its importance plus `floor`; importance comes along: the first token's attention to
    it, averaged over heads, mean 1. q (B, H, 1, d_h), k (B, H, p + t, d_h), z (B, h, t, c), size (B or 1, p + t) →
    twice (B, t)."""
    batch, heads, tokens, width = k.shape
    q, k, z, size, t = dense(q), dense(k), dense(z), dense(size), z.shape[2]
    place, importance = _weighed(q, k, z, size, scale, n, floor, directed)
    own, heed = _pairs(z), k.new_empty(batch, heads, tokens, dtype=torch.float32)
    found_b = own.parts * own.movers
    with torch.cuda.device_of(k):  # a launch goes to the current device
        _look[(batch, heads + own.tiles)](
            q, k, z, size, heed, own.alike, own.nearest,
            q.stride(0), q.stride(1), *k.stride()[:3], *z.stride()[:3], size.stride(0) if size.shape[0] > 1 else 0,
            found_b, heads, z.shape[1], own.movers, own.hosts, own.parts, tokens, scale,
            KEY_WIDTH=width, KEY_CHANNELS=_channels(width), KEYS=triton.next_power_of_2(tokens),
            WIDTH=z.shape[3], SIDE=own.side, CHANNELS=own.channels, DIRECTED=directed,
            EXACT=exact(z.dtype), num_warps=max(4, _warps(own.side)),
        )  # fmt: skip
        _rank_by_class[(batch, triton.cdiv(own.movers, OWN))](
            own.alike, own.nearest, heed, importance, place,
            found_b, heads * tokens, t, heads, tokens, tokens - t, own.movers, own.hosts, own.parts, t - n, floor,
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
