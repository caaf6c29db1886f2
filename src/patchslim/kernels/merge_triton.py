"""A Triton kernel that merges patches in one launch. `merge.merge` says it in a dozen tensor operations, each of which
goes through memory: the kernel is tested against it, and it runs where the kernel can't."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from patchslim.kernels.attention_triton import dense
from patchslim.kernels.available import operator

TINY = tl.constexpr(1e-6)
NOWHERE = tl.constexpr(-(2**30))


@triton.jit
def _merge(
    x, size, weight, place, out, grown, gain, bias, normed,
    x_b, x_n, size_b, weight_b, place_b, out_b, out_n, grown_b, prefix, t, width, eps,
    WIDTH: tl.constexpr, PATCHES: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One token that stays: the average of all that go to its place, at their average length; and its LayerNorm."""
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
    kept = found.to(out.dtype.element_ty)
    tl.store(out + image * out_b + row * out_n + channel, kept, mask=inside)
    if NORM:
        apart = tl.where(inside, kept.to(tl.float32), 0.0)
        apart = tl.where(inside, apart - tl.sum(apart, axis=0) / width, 0.0)
        apart *= tl.rsqrt(tl.sum(apart * apart, axis=0) / width + eps)
        scaled = apart * tl.load(gain + channel, mask=inside, other=0.0).to(tl.float32)
        scaled += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
        tl.store(normed + image * out_b + row * out_n + channel, scaled.to(out.dtype.element_ty), mask=inside)
    tl.store(grown + image * grown_b + row, stands.to(grown.dtype.element_ty))


def _merged(x: Tensor, size: Tensor, weight: Tensor, place: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Room for the results."""
    tokens = x.shape[1] - place.shape[1] + n
    return x.new_empty(x.shape[0], tokens, x.shape[2]), size.new_empty(x.shape[0], tokens)


@operator("patchslim::merge_rows", _merged)
def merge_rows(x: Tensor, size: Tensor, weight: Tensor, place: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Tokens and their sizes after a merge: x (B, p + t, d), size (B or 1, p + t), weight (B or 1, t), place (B, t) →
    (B, p + n, d), (B, p + n)."""
    out, grown = _merged(x, size, weight, place, n)
    _launch_merge(x, size, weight, place, out, grown, None)
    return out, grown


def _merged_normed(
    x: Tensor, size: Tensor, weight: Tensor, place: Tensor, n: int, gain: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Likewise."""
    out, grown = _merged(x, size, weight, place, n)
    return out, grown, torch.empty_like(out)


@operator("patchslim::merge_normed", _merged_normed)
def merge_normed(
    x: Tensor, size: Tensor, weight: Tensor, place: Tensor, n: int, gain: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and the tokens after a LayerNorm, gain and bias (d,)."""
    out, grown, normed = _merged_normed(x, size, weight, place, n, gain, bias, eps)
    _launch_merge(x, size, weight, place, out, grown, _Norm(gain, bias, eps, normed))
    return out, grown, normed


class _Norm(NamedTuple):
    """A LayerNorm, and room for what it gives."""

    gain: Tensor
    bias: Tensor
    eps: float
    out: Tensor


def _launch_merge(
    x: Tensor, size: Tensor, weight: Tensor, place: Tensor, out: Tensor, grown: Tensor, norm: _Norm | None
) -> None:
    batch, tokens, width = x.shape
    t = place.shape[1]
    x, size, weight, place = dense(x), dense(size), dense(weight), dense(place)
    gain, bias, eps, normed = (None, None, 0.0, None) if norm is None else norm
    with torch.cuda.device_of(x):  # a launch goes to the current device
        _merge[(batch, out.shape[1])](
            x, size, weight, place, out, grown, gain, bias, normed,
            x.stride(0), x.stride(1), size.stride(0) if size.shape[0] > 1 else 0,
            weight.stride(0) if weight.shape[0] > 1 else 0, place.stride(0), out.stride(0), out.stride(1),
            grown.stride(0), tokens - t, t, width, eps,
            WIDTH=triton.next_power_of_2(width), PATCHES=triton.next_power_of_2(t), NORM=norm is not None,
            num_warps=1 if width <= 512 else 2,
        )  # fmt: skip
