"""Triton kernels for matching and merging: what `merge` says in a dozen tensor operations, each of which goes through
memory, in three launches. `merge` is what they are tested against, and what runs where they can't."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

from patchslim.hosts.fast import FEW_ROWS
from patchslim.hosts.kernels import LINE, dense, exact

TINY = tl.constexpr(1e-6)
NOWHERE = tl.constexpr(-(2**30))
OWN = 32  # pairs whose rank one program finds


@triton.jit
def _nearest(
    k, alike, nearest,
    k_b, k_h, k_n, found_b, heads, movers, hosts, prefix,
    WIDTH: tl.constexpr, MOVERS: tl.constexpr, HOSTS: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Some even patches of one image and some odd ones: how alike the nearest of these is, and which."""
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    mover, host = tl.program_id(1) * MOVERS + tl.arange(0, MOVERS), part * HOSTS + tl.arange(0, HOSTS)
    channel = tl.arange(0, CHANNELS)
    even, odd, known = (mover < movers)[:, None], (host < hosts)[:, None], (channel < WIDTH)[None, :]
    k += image * k_b + prefix * k_n
    product = tl.zeros([MOVERS, HOSTS], tl.float32)
    square, other = tl.zeros([MOVERS, CHANNELS], tl.float32), tl.zeros([HOSTS, CHANNELS], tl.float32)
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
    row = image * found_b + part * movers + mover
    tl.store(alike + row, most, mask=mover < movers)
    tl.store(nearest + row, place + part * HOSTS, mask=mover < movers)


@triton.jit
def _rank(
    alike, nearest, offset, place,
    found_b, offset_b, place_b, movers, hosts, parts, r,
    OWN: tl.constexpr, MOVERS: tl.constexpr, BY_COST: tl.constexpr,
):  # fmt: skip
    """Some pairs of one image: their rank among all, and so where both patches go."""
    image, own, mover = tl.program_id(0).to(tl.int64), tl.program_id(1) * OWN + tl.arange(0, OWN), tl.arange(0, MOVERS)
    alike, nearest, offset = alike + image * found_b, nearest + image * found_b, offset + image * offset_b
    near, joined = _found(alike, nearest, own, movers, parts)
    mine = _worth(near, offset, own, movers, BY_COST)
    near, _ = _found(alike, nearest, mover, movers, parts)
    every = _worth(near, offset, mover, movers, BY_COST)
    # A rank is a count of better ones: no sort, and ties go by place.
    tied = (every[None, :] == mine[:, None]) & (mover[None, :] < own[:, None])
    rank = tl.sum(((every[None, :] > mine[:, None]) | tied).to(tl.int32), axis=1)
    goes = tl.where(rank < r, joined + movers - r, rank - r)
    tl.store(place + image * place_b + 2 * own, goes, mask=own < movers)
    tl.store(place + image * place_b + 2 * own + 1, own + movers - r, mask=own < hosts)


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
def _worth(near, offset, mover, movers, BY_COST: tl.constexpr):
    """How willingly even patches go."""
    weight = tl.load(offset + 2 * mover, mask=mover < movers, other=0.0)
    worth = -(weight + tl.log(tl.maximum(1 - near, TINY))) if BY_COST else near - weight
    return tl.where(mover < movers, worth, float("-inf"))


@custom_op("patchslim::pair", mutates_args=())
def pair(k: Tensor, offset: Tensor, prefix: int, n: int, by_cost: bool) -> Tensor:
    """Where every patch goes when `n` stay: k (B, H, p + t, d_h), offset (B, t) in fp32 → (B, t) places among the n.

    Pairs by similarity of keys, less the offset; by cost, the offset is the log of a weight on the distance.
    """
    batch, heads, tokens, width = k.shape
    t, k, offset = tokens - prefix, dense(k), dense(offset)
    movers, hosts = (t + 1) // 2, t // 2
    place = _places(k, offset, prefix, n, by_cost)
    channels = max(16, triton.next_power_of_2(width))
    side = _side(batch * tokens, movers, channels * k.element_size())
    parts = triton.cdiv(hosts, side)
    alike = k.new_empty(batch, parts, movers, dtype=torch.float32)
    nearest = torch.empty_like(alike, dtype=torch.int32)
    with torch.cuda.device_of(k):  # a launch goes to the current device
        _nearest[(batch, triton.cdiv(movers, side), parts)](
            k, alike, nearest,
            *k.stride()[:3], parts * movers, heads, movers, hosts, prefix,
            WIDTH=width, MOVERS=side, HOSTS=side, CHANNELS=channels, EXACT=exact(k.dtype), num_warps=_warps(side),
        )  # fmt: skip
        _rank[(batch, triton.cdiv(movers, OWN))](
            alike, nearest, offset, place,
            parts * movers, offset.stride(0), place.stride(0), movers, hosts, parts, t - n,
            OWN=OWN, MOVERS=triton.next_power_of_2(movers), BY_COST=by_cost, num_warps=4,
        )  # fmt: skip
    return place


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


def _places(k: Tensor, offset: Tensor, prefix: int, n: int, by_cost: bool) -> Tensor:
    """Room for the result."""
    return k.new_empty(k.shape[0], k.shape[2] - prefix, dtype=torch.int32)


@triton.jit
def _merge(
    x, size, weight, place, out, grown,
    x_b, x_n, size_b, weight_b, place_b, out_b, out_n, grown_b, prefix, t, width,
    WIDTH: tl.constexpr, PATCHES: tl.constexpr,
):  # fmt: skip
    """One token that stays: the average of all that go to its place, at their average length."""
    image, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel, patch = tl.arange(0, WIDTH), tl.arange(0, PATCHES)
    x += image * x_b + channel
    size += image * size_b
    inside = channel < width
    to = tl.load(place + image * place_b + patch, mask=patch < t, other=NOWHERE)
    left = to == row - prefix  # nothing, where it is a prefix token
    heavy = tl.load(weight + image * weight_b + patch, mask=left, other=0.0).to(tl.float32)
    heavy = tl.where(left, tl.maximum(heavy, TINY), 0.0)
    many = tl.load(size + prefix + patch, mask=left, other=0.0).to(tl.float32)
    count = tl.sum(left.to(tl.int32), axis=0)
    if count > 1:
        total, mean, length = tl.sum(heavy, axis=0), tl.zeros([WIDTH], tl.float32), 0.0
        for _ in range(count):
            one = tl.argmax(left.to(tl.int32), axis=0)
            own = tl.load(x + (prefix + one) * x_n, mask=inside, other=0.0).to(tl.float32)
            share = tl.sum(tl.where(patch == one, heavy, 0.0), axis=0) / total
            mean += share * own
            length += share * tl.sqrt(tl.sum(own * own, axis=0))
            left = left & (patch != one)
        found = mean * (length / tl.maximum(tl.sqrt(tl.sum(mean * mean, axis=0)), TINY))
        stands = tl.sum(many, axis=0)
    else:  # itself, to the bit
        alone = tl.where(row < prefix, row, prefix + tl.argmax(left.to(tl.int32), axis=0))
        found = tl.load(x + alone * x_n, mask=inside, other=0.0).to(tl.float32)
        stands = tl.load(size + alone).to(tl.float32)
    tl.store(out + image * out_b + row * out_n + channel, found.to(out.dtype.element_ty), mask=inside)
    tl.store(grown + image * grown_b + row, stands.to(grown.dtype.element_ty))


@custom_op("patchslim::merge_rows", mutates_args=())
def merge_rows(x: Tensor, size: Tensor, weight: Tensor, place: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Tokens and their sizes after a merge: x (B, p + t, d), size (B or 1, p + t), weight (B or 1, t), place (B, t) →
    (B, p + n, d), (B, p + n)."""
    batch, tokens, width = x.shape
    t = place.shape[1]
    prefix = tokens - t
    x, size, weight, place = dense(x), dense(size), dense(weight), dense(place)
    out, grown = _merged(x, size, weight, place, n)
    with torch.cuda.device_of(x):  # a launch goes to the current device
        _merge[(batch, prefix + n)](
            x, size, weight, place, out, grown,
            x.stride(0), x.stride(1), size.stride(0) if size.shape[0] > 1 else 0,
            weight.stride(0) if weight.shape[0] > 1 else 0, place.stride(0), out.stride(0), out.stride(1),
            grown.stride(0), prefix, t, width,
            WIDTH=triton.next_power_of_2(width), PATCHES=triton.next_power_of_2(t), num_warps=1 if width <= 512 else 2,
        )  # fmt: skip
    return out, grown


def _merged(x: Tensor, size: Tensor, weight: Tensor, place: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Room for the results."""
    tokens = x.shape[1] - place.shape[1] + n
    return x.new_empty(x.shape[0], tokens, x.shape[2]), size.new_empty(x.shape[0], tokens)


pair.register_fake(_places)
merge_rows.register_fake(_merged)
