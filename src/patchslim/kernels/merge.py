"""Merging patches into averages of a mean length, by tensor operations or in one kernel.

Shapes: B images, p prefix tokens, t patches that come in, n that stay. Tokens x (B, p + t, d), sizes (B or 1, p + t) or
None where each stands for itself.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from patchslim.kernels.attention import ROW, rows_of, store_size
from patchslim.kernels.available import DTYPES, MOST_TOKENS, few_rows, in_inference, operator, tl, triton
from patchslim.kernels.match import TINY, Match, unrounded
from patchslim.kernels.match_kernels import COLUMNS, FEW, SIDE

LEAST = tl.constexpr(TINY)
ROOM = tl.constexpr(2**14)  # more than there are patches
SOME = 4  # members of a token that a program reads at a time, half as many of wide ones


class Merged(NamedTuple):
    """Tokens after a merge, the prefix as it was."""

    x: Tensor  # (B, p + n, d)
    size: Tensor  # (B, p + n): input patches that each stands for
    log_size: Tensor | None  # (B, p + n, 16): what attention reads of sizes, where that came for nothing
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
    mean = rows.new_zeros(batch * found.n, x.shape[2]).index_add(0, place, rows).view(batch, found.n, x.shape[2])
    length = none.scatter_add(1, to, share * vector_norm(own, dim=2).to(share))
    length = length / vector_norm(mean, dim=2).clamp_min(TINY)
    # How many patches a token stands for is counted, and has no derivative.
    grown = size.new_zeros(batch, found.n).scatter_add(1, to, size[:, prefix:].detach())
    mean = (mean * length[..., None]).to(x.dtype)
    return torch.cat([x[:, :prefix], mean], dim=1), torch.cat([size[:, :prefix], grown], dim=1)


@triton.jit
def _list_members(root, member, begin, t, n, SIDE: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Patches in the order of what they join, itself before the others: places of some of them in it. What stays says
    where its members begin. The rank of a patch is how many come before it, so no sort."""
    image, row = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    root += image * t
    mine = tl.load(root + row, mask=row < t, other=0)
    own = mine * ROOM + tl.where(mine == row, 0, row + 1)
    rank, place = tl.zeros([SIDE], tl.int32), tl.zeros([SIDE], tl.int32)
    for first in range(0, t, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        theirs = tl.load(root + column, mask=column < t, other=ROOM)
        other = theirs * ROOM + tl.where(theirs == column, 0, column + 1)
        stays = tl.where(theirs == column, column, ROOM)
        rank += tl.sum((other[None, :] < own[:, None]).to(tl.int32), axis=1)
        place += tl.sum((stays[None, :] < row[:, None]).to(tl.int32), axis=1)
    tl.store(member + image * t + rank, row, mask=row < t)
    tl.store(begin + image * n + place, rank, mask=(row < t) & (mine == row))


@triton.jit
def _merge_members(
    x, size, weight, member, begin, out, grown, log_size, gain, bias, normed,
    x_b, x_n, size_b, weight_b, out_b, out_n, grown_b, prefix, t, n, width, eps,
    WIDTH: tl.constexpr, SOME: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One token that stays: the average of its members, at their average length; and its LayerNorm."""
    image, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel, some = tl.arange(0, WIDTH), tl.arange(0, SOME)
    x += image * x_b
    size += image * size_b
    weight += image * weight_b
    inside = channel < width
    if row < prefix:
        found = tl.load(x + row * x_n + channel, mask=inside, other=0.0).to(tl.float32)
        stands = tl.load(size + row).to(tl.float32)
    else:
        start = tl.load(begin + image * n + row - prefix)
        end = tl.load(begin + image * n + row - prefix + 1, mask=row - prefix + 1 < n, other=t)
        mean, length, total, stands = tl.zeros([WIDTH], tl.float32), 0.0, 0.0, 0.0
        for at in range(start, end, SOME):
            known = at + some < end
            one = tl.load(member + image * t + at + some, mask=known, other=0)
            heavy = tl.maximum(tl.load(weight + one, mask=known, other=0.0).to(tl.float32), LEAST)
            heavy = tl.where(known, heavy, 0.0)
            stands += tl.sum(tl.load(size + prefix + one, mask=known, other=0.0).to(tl.float32), axis=0)
            own = tl.load(
                x + (prefix + one)[:, None] * x_n + channel[None, :], mask=known[:, None] & inside[None, :], other=0.0
            ).to(tl.float32)
            total += tl.sum(heavy, axis=0)
            mean += tl.sum(heavy[:, None] * own, axis=0)
            length += tl.sum(heavy * tl.sqrt(tl.sum(own * own, axis=1)), axis=0)
        if end - start > 1:
            found = mean * (length / total / tl.maximum(tl.sqrt(tl.sum(mean * mean, axis=0)), LEAST * total))
        else:  # itself, to the bit
            alone = tl.load(member + image * t + start)
            found = tl.load(x + (prefix + alone) * x_n + channel, mask=inside, other=0.0).to(tl.float32)
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
    store_size(log_size + (image * grown_b + row) * ROW, stands)


def _merged(
    x: Tensor, size: Tensor, weight: Tensor, root: Tensor, n: int, gain: Tensor | None, bias: Tensor | None, eps: float
) -> list[Tensor]:
    """Room for the results."""
    out = x.new_empty(x.shape[0], x.shape[1] - root.shape[1] + n, x.shape[2])
    grown = size.new_empty(out.shape[:2])
    return [out, grown, rows_of(grown, x), *([] if gain is None else [torch.empty_like(out)])]


@operator("patchslim::merge_rows", _merged)
def merge_rows(
    x: Tensor, size: Tensor, weight: Tensor, root: Tensor, n: int, gain: Tensor | None, bias: Tensor | None, eps: float
) -> list[Tensor]:
    """Tokens and their sizes after a merge: x (B, p + t, d), size (B or 1, p + t), weight (B or 1, t), root (B, t) →
    (B, p + n, d), (B, p + n), `size_rows` of these; and where gain and bias (d,) are given, the tokens after that
    LayerNorm."""
    batch, t = root.shape
    width = x.shape[2]
    out, grown, log_size, *normed = made = _merged(x, size, weight, root, n, gain, bias, eps)
    member, begin = torch.empty_like(root), root.new_empty(batch, n)
    side = FEW if few_rows(x) else SIDE
    _list_members[(batch, triton.cdiv(t, side))](
        root, member, begin, t, n, SIDE=side, COLUMNS=max(16, min(COLUMNS, triton.next_power_of_2(t))), num_warps=4
    )
    _merge_members[(batch, out.shape[1])](
        x, size, weight, member, begin, out, grown, log_size, gain, bias, *(normed or (None,)),
        x.stride(0), x.stride(1), size.stride(0) if len(size) > 1 else 0, weight.stride(0) if len(weight) > 1 else 0,
        out.stride(0), out.stride(1), grown.stride(0), x.shape[1] - t, t, n, width, eps,
        WIDTH=triton.next_power_of_2(width), SOME=SOME if width <= 256 else SOME // 2, NORM=gain is not None,
        num_warps=1,
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
        tokens, grown, log_size, *normed = merge_rows(x, size, weight, found.root, found.n, *layer)
        return Merged(tokens, grown, log_size, normed[0] if normed else None, found)
    size, weight = size.expand(x.shape[0], -1), weight.expand(x.shape[0], -1).clamp_min(TINY)
    tokens, grown = unrounded(x.device, _merge, x, size, found, prefix, weight)
    return Merged(tokens, grown, None, None, found)


def merge_kernel_for(x: Tensor) -> bool:
    """Whether a kernel can merge tokens (B, p + t, d)."""
    return in_inference(x) and x.dtype in DTYPES and x.shape[1] <= MOST_TOKENS


def plain_norm(norm: Any, x: Tensor) -> bool:
    """Whether a module is a LayerNorm over the last axis of x with gain and bias, all of one precision."""
    if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
        return False
    return norm.weight.shape == x.shape[-1:] and x.dtype == norm.weight.dtype == norm.bias.dtype
