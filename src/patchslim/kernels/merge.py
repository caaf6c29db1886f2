"""Merging patches into averages of a mean length, by tensor operations or in one kernel.

Shapes: B images, p prefix tokens, t patches that come in, n that stay. Tokens x (B, p + t, d), sizes (B or 1, p + t) or
None where each stands for itself.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from patchslim.kernels.available import DTYPES, MOST_TOKENS, in_inference, operator, tl, triton
from patchslim.kernels.match import TINY, Match, unrounded

LEAST = tl.constexpr(TINY)
NOWHERE = tl.constexpr(-(2**30))


class Merged(NamedTuple):
    """Tokens after a merge, the prefix as it was."""

    x: Tensor  # (B, p + n, d)
    size: Tensor  # (B, p + n): input patches that each stands for
    normed: Tensor | None  # (B, p + n, d): LN1 of x, where that came for nothing
    found: Match  # what went where


def _merge(x: Tensor, size: Tensor, found: Match, prefix: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and sizes, whose precision `unrounded` leaves as it is: (B, p + n, d), (B, p + n)."""
    batch, to = x.shape[0], found.to.long()
    none = weight.new_zeros(batch, found.n)
    share = weight / none.scatter_add(1, to, weight).gather(1, to)  # of one that nobody joins: 1
    own = x[:, prefix:]
    place = (to + torch.arange(0, batch * found.n, found.n, device=x.device)[:, None]).flatten()
    rows = (own * share[..., None].to(own)).flatten(0, 1)
    mean = rows.new_zeros(batch * found.n, x.shape[2]).index_add(0, place, rows).unflatten(0, (batch, found.n))
    length = none.scatter_add(1, to, share * vector_norm(own, dim=2).to(share)) / vector_norm(mean, dim=2).clamp_min(TINY)
    # How many patches a token stands for is counted, and has no derivative.
    grown = size.new_zeros(batch, found.n).scatter_add(1, to, size[:, prefix:].detach())
    mean = (mean * length[..., None]).to(x.dtype)
    return torch.cat([x[:, :prefix], mean], dim=1), torch.cat([size[:, :prefix], grown], dim=1)


@triton.jit
def _merge_place(
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
    heavy = tl.where(left, tl.maximum(heavy, LEAST), 0.0)
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
        found = mean * (length / tl.maximum(tl.sqrt(tl.sum(mean * mean, axis=0)), LEAST))
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


def _merged(
    x: Tensor, size: Tensor, weight: Tensor, place: Tensor, n: int, gain: Tensor | None, bias: Tensor | None, eps: float
) -> list[Tensor]:
    """Room for the results."""
    out = x.new_empty(x.shape[0], x.shape[1] - place.shape[1] + n, x.shape[2])
    return [out, size.new_empty(out.shape[:2]), *([] if gain is None else [torch.empty_like(out)])]


@operator("patchslim::merge_rows", _merged)
def merge_rows(
    x: Tensor, size: Tensor, weight: Tensor, place: Tensor, n: int, gain: Tensor | None, bias: Tensor | None, eps: float
) -> list[Tensor]:
    """Tokens and their sizes after a merge: x (B, p + t, d), size (B or 1, p + t), weight (B or 1, t), place (B, t) →
    (B, p + n, d), (B, p + n); and where gain and bias (d,) are given, the tokens after that LayerNorm."""
    t, width = place.shape[1], x.shape[2]
    out, grown, *normed = made = _merged(x, size, weight, place, n, gain, bias, eps)
    _merge_place[(len(x), out.shape[1])](
        x, size, weight, place, out, grown, gain, bias, *(normed or (None,)),
        x.stride(0), x.stride(1), size.stride(0) if len(size) > 1 else 0, weight.stride(0) if len(weight) > 1 else 0,
        place.stride(0), out.stride(0), out.stride(1), grown.stride(0), x.shape[1] - t, t, width, eps,
        WIDTH=triton.next_power_of_2(width), PATCHES=triton.next_power_of_2(t), NORM=gain is not None,
        num_warps=1 if width <= 512 else 2,
    )  # fmt: skip
    return made


def merge(
    x: Tensor, size: Tensor | None, found: Match, prefix: int, weight: Tensor | None = None, norm: Any = None
) -> Merged:
    """Average what goes into what it joins; sizes add up. weight (B, t), else the size, says how much each counts.

    The average of vectors is shorter than they are, and LayerNorm would not see that; so it gets their average length.
    From a kernel the tokens come with what `norm`, the block's LN1, makes of them.
    """
    size = torch.ones(1, x.shape[1], device=x.device) if size is None else size
    weight = size[:, prefix:] if weight is None else weight
    if merge_kernel_for(x):
        layer = (norm.weight, norm.bias, norm.eps) if plain_norm(norm, x) else (None, None, 0.0)
        rows, grown, *normed = merge_rows(x, size, weight, found.to, found.n, *layer)
        return Merged(rows, grown, normed[0] if normed else None, found)
    size, weight = size.expand(x.shape[0], -1), weight.expand(x.shape[0], -1).clamp_min(TINY)
    rows, grown = unrounded(x.device, _merge, x, size, found, prefix, weight)
    return Merged(rows, grown, None, found)


def merge_kernel_for(x: Tensor) -> bool:
    """Whether a kernel can merge tokens (B, p + t, d)."""
    return in_inference(x) and x.dtype in DTYPES and x.shape[1] <= MOST_TOKENS


def plain_norm(norm: Any, x: Tensor) -> bool:
    """Whether a module is a LayerNorm over the last axis of x with gain and bias, all of one precision."""
    if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
        return False
    return norm.weight.shape == x.shape[-1:] and x.dtype == norm.weight.dtype == norm.bias.dtype
