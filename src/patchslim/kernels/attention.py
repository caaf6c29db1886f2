"""Attention's two products, the ways slim blocks need them. A host projects; these mix.

Shapes: queries q (B, H, n, d_h), keys k and values v (B, H, n_in, d_h) → (B, H, n, d_h). Sizes are (B, n_in), or
(1, n_in) where they are the same for every image: how many input patches each key stands for.

On a GPU, libraries' fused kernels take no bias without a detour, and are slow for few tokens: in inference there ours
take over.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.kernels.available import (
    FEW_ROWS,
    LINE,
    MOST_KEYS,
    exact,
    kernels_for,
    operator,
    tl,
    triton,
    worth_launching,
)

ALIGNED = 8  # fused kernels want head widths that are multiples of this
LOG2E = tl.constexpr(1.4426950408889634)
ROW_CHANNELS = 16  # of what is read of a key's size: as many as matrix units take
ROW = tl.constexpr(ROW_CHANNELS)
FEW_QUERIES = (64, 128)  # so many are one program's


class Mix(Protocol):
    """One way to mix values by attention."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        """softmax(scale · q kᵀ + …) v: (B, H, n, d_h); `dropout` is 0 outside training."""


def plain(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
    """Every key counts once."""
    if not fused:
        return F.dropout((q * scale @ k.transpose(-2, -1)).softmax(dim=-1), dropout) @ v
    if small_kernel_for(k):
        return attend(q, k, v, None, scale)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)


def sized(size: Tensor, log_size: Tensor | None = None) -> Mix:
    """A key that stands for s input patches counts s times: log(s) is added to its logits. size (B or 1, n_in);
    `log_size` is `size_rows` of it, where that came with a merge."""

    # A closure and not a callable object: torch.compile of 2.11 can't trace a call to the latter.
    def mix(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        if fused and kernels_for(k):
            known = log_size is not None and log_size.dtype == k.dtype
            return attend(q, k, v, log_size if known else size_rows(size, k), scale)
        bias = size.log().to(q.dtype)
        if not fused:
            logits = q * scale @ k.transpose(-2, -1) + bias[:, None, None, :]
            return F.dropout(logits.softmax(dim=-1), dropout) @ v
        if q.is_cuda:
            return _as_channel(q, k, v, bias, scale, dropout)
        bias = bias[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)

    return mix


def _as_channel(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, dropout: float) -> Tensor:
    """The bias as one more channel, 1 in the queries and bias / scale in the keys: flash attention takes no mask.

    Where a gradient is wanted; inference has a kernel of its own.
    Channels are filled up with zeros to a width the kernels are fast at.
    """
    batch, heads, n_in, width = k.shape
    fill = ALIGNED - width % ALIGNED
    ones = F.pad(q.new_ones(()).expand(batch, heads, q.shape[2], 1), (0, fill - 1))
    row = F.pad((bias / scale)[:, None, :, None].expand(batch, heads, n_in, 1), (0, fill - 1))
    q, k, v = torch.cat([q, ones], -1), torch.cat([k, row], -1), F.pad(v, (0, fill))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)[..., :width]


def attention_rows(q: Tensor, k: Tensor, scale: float, size: Tensor | None = None) -> Tensor:
    """Softmax rows of some queries: (B, H, n, d_h), (B, H, n_in, d_h) → (B, H, n, n_in), in at least fp32."""
    logits = q * scale @ k.transpose(-2, -1)
    if size is not None:
        logits = logits + size.log()[:, None, None, :]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(dim=-1)


def class_attention(q: Tensor, k: Tensor, size: Tensor | None, scale: float) -> Tensor:
    """How the first token attends to all, averaged over heads: q (B, H, 1, d_h) → (B, n_in), rows sum to 1."""
    if kernels_for(k) and k.shape[2] <= MOST_KEYS:
        return class_rows(q, k, q.new_ones(1, k.shape[2]) if size is None else size, scale).mean(dim=1)
    return attention_rows(q, k, scale, size).mean(dim=1)[:, 0]


def small_kernel_for(k: Tensor) -> bool:
    """Whether our kernel for attention is faster than the library's: for few rows, in a compiled model.

    Keys (B, H, n_in, d_h).
    """
    # The batch comes last: an exporter that leaves it free must not be asked how large it is.
    return torch.compiler.is_dynamo_compiling() and kernels_for(k) and k.shape[0] * k.shape[2] <= FEW_ROWS


@triton.jit
def store_size(rows, size):  # fmt: skip
    """What attention reads of one key's size, log₂ of it in two parts that matrix units take: (ROW,) channels."""
    channel = tl.arange(0, ROW)
    log = tl.log2(size)
    high = log.to(rows.dtype.element_ty).to(tl.float32)
    part = tl.where(channel == 1, log - high, tl.where((channel == 0) | (channel == 2), high, 0.0))
    tl.store(rows + channel, part.to(rows.dtype.element_ty))


@triton.jit
def _size_rows(size, rows, size_b, n_in):  # fmt: skip
    """One key."""
    image, key = tl.program_id(0).to(tl.int64), tl.program_id(1)
    store_size(rows + (image * n_in + key) * ROW, tl.load(size + image * size_b + key).to(tl.float32))


def rows_of(size: Tensor, k: Tensor) -> Tensor:
    """Room for the result."""
    return k.new_empty(*size.shape, ROW_CHANNELS)


@operator("patchslim::size_rows", rows_of)
def size_rows(size: Tensor, k: Tensor) -> Tensor:
    """What attention reads of sizes (B or 1, n_in), in the precision of keys: (B or 1, n_in, 16)."""
    rows = rows_of(size, k)
    _size_rows[tuple(size.shape)](size, rows, size.stride(0), size.shape[1], num_warps=1)
    return rows


@triton.jit
def _attend(
    q, k, v, rows, out,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, rows_b, out_b, out_h, out_n,
    heads, n, n_in, scale,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr,
    SIZED: tl.constexpr,
):  # fmt: skip
    """Some queries of one head of one image, over all its keys: softmax with running maximum.

    Sizes come in as channels that queries have 1 / scale in. Added to the logits one by one they would cost as much as
    a product: numbers would change places in every step.
    """
    image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    key, channel = tl.arange(0, KEYS), tl.arange(0, CHANNELS)
    inside = (row < n)[:, None]
    if WIDTH < CHANNELS:  # else the mask would be tested for nothing
        inside = inside & (channel < WIDTH)[None, :]
    own = tl.load(q + image * q_b + head * q_h + row[:, None] * q_n + channel[None, :], mask=inside, other=0.0)
    inverse = 1 / (scale * LOG2E)
    high = inverse.to(own.dtype).to(tl.float32)
    part = tl.arange(0, ROW)[None, :] + tl.zeros([ROWS, 1], tl.int32)
    ones = tl.where(part < 2, high, tl.where(part == 2, inverse - high, 0.0)).to(own.dtype)
    k += image * k_b + head * k_h
    v += image * v_b + head * v_h
    if SIZED:
        rows += image * rows_b
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, CHANNELS], tl.float32)
    whole = n_in // KEYS * KEYS
    for begin in range(0, whole, KEYS):
        most, total, mixed = _attend_tile(
            own, ones, k, v, rows, begin + key, most, total, mixed, k_n, v_n, n_in, scale,
            WIDTH, CHANNELS, EXACT, SIZED, False,
        )  # fmt: skip
    if whole < n_in:
        most, total, mixed = _attend_tile(
            own, ones, k, v, rows, whole + key, most, total, mixed, k_n, v_n, n_in, scale,
            WIDTH, CHANNELS, EXACT, SIZED, True,
        )  # fmt: skip
    mixed = mixed / total[:, None]
    place = out + image * out_b + head * out_h + row[:, None] * out_n + channel[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _attend_tile(
    own, ones, k, v, rows, at, most, total, mixed, k_n, v_n, n_in, scale,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr, SIZED: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The same queries over some of the keys; the last of them may lie past the end."""
    channel, part = tl.arange(0, CHANNELS), tl.arange(0, ROW)
    keys, values = k + at[:, None] * k_n + channel[None, :], v + at[:, None] * v_n + channel[None, :]
    if LAST or WIDTH < CHANNELS:
        known = (at < n_in)[:, None] & (channel < WIDTH)[None, :]
        keys, values = tl.load(keys, mask=known, other=0.0), tl.load(values, mask=known, other=0.0)
    else:
        keys, values = tl.load(keys), tl.load(values)
    logits = tl.dot(own, tl.trans(keys), input_precision=EXACT)
    if SIZED:
        sizes = tl.load(rows + at[:, None] * ROW + part[None, :], mask=(at < n_in)[:, None], other=0.0)
        logits = tl.dot(ones, tl.trans(sizes), logits, input_precision=EXACT)
    logits = logits * (scale * LOG2E)
    if LAST:
        logits = tl.where((at < n_in)[None, :], logits, float("-inf"))
    higher = tl.maximum(most, tl.max(logits, axis=1))
    weight = tl.exp2(logits - higher[:, None])
    fade = tl.exp2(most - higher)
    mixed = mixed * fade[:, None] + tl.dot(weight.to(values.dtype), values, input_precision=EXACT)
    return higher, total * fade + tl.sum(weight, axis=1), mixed


def _attended(q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None, scale: float) -> Tensor:
    """Room for the result."""
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)


@operator("patchslim::attend", _attended)
def attend(q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None, scale: float) -> Tensor:
    """softmax(scale · q kᵀ + log size) v: (B, H, n, d_h), twice (B, H, n_in, d_h), (B or 1, n_in, 16) →
    (B, H, n, d_h). Sizes are given as `size_rows`.

    Any strides but the last; the result lies in memory as (B, n, H, d_h), which is what the projection reads.
    """
    batch, heads, n, width = q.shape
    n_in = k.shape[2]
    if rows is None and not worth_launching(("attend", q.device, q.dtype, *q.shape, n_in)):
        mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
        return mixed.transpose(1, 2).contiguous().transpose(1, 2)
    out = _attended(q, k, v, rows, scale)
    channels = max(16, triton.next_power_of_2(width))
    many, keys, warps, stages = _tile(batch * n_in, n, channels * k.element_size())
    _attend[(batch * heads, triton.cdiv(n, many))](
        q, k, v, rows, out,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        0 if rows is None or len(rows) == 1 else rows.stride(0), *out.stride()[:3], heads, n, n_in, scale,
        WIDTH=width, ROWS=many, KEYS=keys, CHANNELS=channels, EXACT=exact(q.dtype), SIZED=rows is not None,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def _tile(tokens: int, n: int, line: int) -> tuple[int, int, int, int]:
    """Rows, keys, groups of threads and stages of a program, fast on an H200 (docs/notebook/decisions.md). For few
    tokens of a batch: many programs of few rows; else larger ones, smaller where lines of so many bytes don't fit."""
    if line > LINE:
        return 64, 32, 4, 2
    if tokens <= FEW_ROWS:
        return 16, 128, 4, 2
    return (128, 64, 8, 2) if FEW_QUERIES[0] < n <= FEW_QUERIES[1] else (64, 64, 4, 3)


@triton.jit
def _class_rows(
    q, k, size, out,
    q_b, q_h, k_b, k_h, k_n, size_b, heads, n_in, scale,
    WIDTH: tl.constexpr, KEYS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """One head of one image."""
    image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    class_row(
        q + image * q_b + head * q_h, k + image * k_b + head * k_h, size + image * size_b,
        out + tl.program_id(0).to(tl.int64) * n_in, k_n, n_in, scale, WIDTH, KEYS, CHANNELS,
    )  # fmt: skip


@triton.jit
def class_row(
    q, k, size, out, k_n, n_in, scale, WIDTH: tl.constexpr, KEYS: tl.constexpr, CHANNELS: tl.constexpr
) -> None:  # fmt: skip
    """The softmax row of one query of one head; pointers are to the head's own."""
    key, channel = tl.arange(0, KEYS), tl.arange(0, CHANNELS)
    known = (key < n_in)[:, None] & (channel < WIDTH)[None, :]
    count = tl.load(size + key, mask=key < n_in, other=1.0).to(tl.float32)
    own = tl.load(q + channel, mask=channel < WIDTH, other=0.0).to(tl.float32)
    keys = tl.load(k + key[:, None] * k_n + channel[None, :], mask=known, other=0.0)
    logits = tl.sum(keys.to(tl.float32) * own[None, :], axis=1) * scale + tl.log(count)
    logits = tl.where(key < n_in, logits, float("-inf"))
    weight = tl.exp(logits - tl.max(logits, axis=0))
    tl.store(out + key, weight / tl.sum(weight, axis=0), mask=key < n_in)


def _rows(q: Tensor, k: Tensor, size: Tensor, scale: float) -> Tensor:
    """Room for the result."""
    return q.new_empty(k.shape[:3], dtype=torch.float32)


@operator("patchslim::class_rows", _rows)
def class_rows(q: Tensor, k: Tensor, size: Tensor, scale: float) -> Tensor:
    """One query's attention to all keys: (B, H, 1, d_h), (B, H, n_in, d_h), (B or 1, n_in) → (B, H, n_in) in fp32."""
    batch, heads, n_in, width = k.shape
    out = _rows(q, k, size, scale)
    _class_rows[(batch * heads,)](
        q, k, size, out,
        q.stride(0), q.stride(1), *k.stride()[:3], size.stride(0) if len(size) > 1 else 0, heads, n_in, scale,
        WIDTH=width, KEYS=triton.next_power_of_2(n_in), CHANNELS=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out
