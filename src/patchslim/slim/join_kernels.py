"""A Triton kernel that ranks pairs and merges them at once, for few tokens: there a launch takes longer than for every
program to find all ranks by itself. What it computes are `pair_kernels`' ranks and `merge_kernels`' rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from patchslim.hosts.fast import operator
from patchslim.hosts.kernels import dense
from patchslim.slim.merge_kernels import averaged, scaled_row
from patchslim.slim.pair_kernels import look

NOWHERE = tl.constexpr(-(2**30))


@triton.jit
def _join(
    x, size, alike, nearest, heed, out, grown, normed, gain, bias,
    x_b, x_n, size_b, found_b, heed_b, out_b, out_n, grown_b,
    prefix, t, width, heads, n_in, movers, hosts, parts, r, resistance, eps,
    WIDTH: tl.constexpr, MOVERS: tl.constexpr, PARTS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """One token that stays: the average of all that go to its place, at their average length; and its LayerNorm."""
    image, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel, mover = tl.arange(0, WIDTH), tl.arange(0, MOVERS)
    inside, moves = channel < width, mover < movers
    heed += image * heed_b + prefix
    even = _mean(heed, 2 * mover, t, heads, n_in, HEADS)
    odd = _mean(heed, 2 * mover + 1, t, heads, n_in, HEADS)
    near, joined = _found(alike + image * found_b, nearest + image * found_b, mover, movers, parts, PARTS)
    worth = tl.where(moves, near - resistance * even, float("-inf"))
    # A rank is a count of better ones: no sort, and ties go by place.
    tied = (worth[None, :] == worth[:, None]) & (mover[None, :] < mover[:, None])
    rank = tl.sum(((worth[None, :] > worth[:, None]) | tied).to(tl.int32), axis=1)
    goes = tl.where(moves, tl.where(rank < r, joined + movers - r, rank - r), NOWHERE)
    stays = tl.where(mover < hosts, mover + movers - r, NOWHERE)
    left = tl.interleave(goes, stays) == row - prefix  # nothing, where it is a prefix token
    found, stands = averaged(
        x + image * x_b + channel, size + image * size_b, left, tl.interleave(even, odd), row,
        tl.arange(0, 2 * MOVERS), x_n, prefix, inside, WIDTH,
    )  # fmt: skip
    place = image * out_b + row * out_n + channel
    kept = found.to(out.dtype.element_ty)
    tl.store(out + place, kept, mask=inside)
    scaled = scaled_row(kept.to(tl.float32), gain, bias, channel, inside, width, eps)
    tl.store(normed + place, scaled.to(out.dtype.element_ty), mask=inside)
    tl.store(grown + image * grown_b + row, stands.to(grown.dtype.element_ty))


@triton.jit
def _mean(heed, patch, t, heads, n_in, HEADS: tl.constexpr):
    """The first token's attention to patches, averaged over heads, over the average patch's share."""
    head = tl.arange(0, HEADS)  # all at once: loads that wait for each other are what takes time here
    known = (head < heads)[:, None] & (patch < t)[None, :]
    return tl.sum(tl.load(heed + head[:, None] * n_in + patch[None, :], mask=known, other=0.0), axis=0) * t / heads


@triton.jit
def _found(alike, nearest, mover, movers, parts, PARTS: tl.constexpr):
    """The nearest of all odd patches, from the nearest of every part of them: how alike, and which."""
    part = tl.arange(0, PARTS)
    known = (part < parts)[:, None] & (mover < movers)[None, :]
    own = part[:, None] * movers + mover[None, :]
    most, which = tl.max(tl.load(alike + own, mask=known, other=float("-inf")), axis=0, return_indices=True)
    place = tl.load(nearest + own, mask=known, other=0)
    return most, tl.sum(tl.where(part[:, None] == which[None, :], place, 0), axis=0)


def _joined(
    x: Tensor, size: Tensor, q: Tensor, k: Tensor, gain: Tensor, bias: Tensor,
    eps: float, scale: float, prefix: int, n: int, resistance: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Room for the results."""
    out = x.new_empty(x.shape[0], prefix + n, x.shape[2])
    return out, size.new_empty(x.shape[0], prefix + n), torch.empty_like(out)


@operator("patchslim::join_normed", _joined)
def join_normed(
    x: Tensor, size: Tensor, q: Tensor, k: Tensor, gain: Tensor, bias: Tensor,
    eps: float, scale: float, prefix: int, n: int, resistance: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`pair_by_class` and `merge_normed` in two launches: tokens, their sizes, and the tokens after a LayerNorm.

    x (B, p + t, d), size (B or 1, p + t), q (B, H, 1, d_h), k (B, H, p + t, d_h), gain and bias (d,) →
    (B, p + n, d), (B, p + n), (B, p + n, d).
    """
    batch, tokens, width = x.shape
    heads, t = k.shape[1], tokens - prefix
    out, grown, normed = _joined(x, size, q, k, gain, bias, eps, scale, prefix, n, resistance)
    own, heed = look(q, k, size, scale, prefix)
    x, size = dense(x), dense(size)
    with torch.cuda.device_of(x):  # a launch goes to the current device
        _join[(batch, prefix + n)](
            x, size, own.alike, own.nearest, heed, out, grown, normed, gain, bias,
            x.stride(0), x.stride(1), size.stride(0) if size.shape[0] > 1 else 0, own.parts * own.movers,
            heads * tokens, out.stride(0), out.stride(1), grown.stride(0),
            prefix, t, width, heads, tokens, own.movers, own.hosts, own.parts, t - n, resistance, eps,
            WIDTH=triton.next_power_of_2(width), MOVERS=triton.next_power_of_2(own.movers),
            PARTS=triton.next_power_of_2(own.parts), HEADS=triton.next_power_of_2(heads), num_warps=4,
        )  # fmt: skip
    return out, grown, normed
