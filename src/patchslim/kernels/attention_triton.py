"""Triton kernels for attention that knows sizes: on a GPU, libraries' fused kernels take no bias without a detour, and
are slow for few tokens.

`attention.sized` and `attention.class_attention` say what they compute, and take over elsewhere: on a CPU, in training,
in an export.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from patchslim.kernels.available import FEW_ROWS, operator, worth_launching

LOG2E = tl.constexpr(1.4426950408889634)
LINE = 256  # bytes of a key, a multiple of which a program keeps to itself: in fp32 the widest heads have more


@triton.jit
def _attend(
    q, k, v, size, out,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, size_b, out_b, out_h, out_n,
    heads, n, n_in, scale,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr,
    SIZED: tl.constexpr,
):  # fmt: skip
    """Some queries of one head of one image, over all its keys: softmax with running maximum."""
    image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    key, channel = tl.arange(0, KEYS), tl.arange(0, CHANNELS)
    inside = (row < n)[:, None]
    if WIDTH < CHANNELS:  # else the mask would be tested for nothing
        inside = inside & (channel < WIDTH)[None, :]
    own = tl.load(q + image * q_b + head * q_h + row[:, None] * q_n + channel[None, :], mask=inside, other=0.0)
    k += image * k_b + head * k_h
    v += image * v_b + head * v_h
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, CHANNELS], tl.float32)
    for begin in range(0, n_in, KEYS):
        at = begin + key
        known = (at < n_in)[:, None]
        if WIDTH < CHANNELS:
            known = known & (channel < WIDTH)[None, :]
        keys = tl.load(k + at[:, None] * k_n + channel[None, :], mask=known, other=0.0)
        logits = tl.dot(own, tl.trans(keys), input_precision=EXACT) * (scale * LOG2E)
        if SIZED:
            logits += _log2(size + image * size_b + at, at < n_in)[None, :]
        logits = tl.where((at < n_in)[None, :], logits, float("-inf"))
        higher = tl.maximum(most, tl.max(logits, axis=1))
        weight = tl.exp2(logits - higher[:, None])
        fade = tl.exp2(most - higher)
        values = tl.load(v + at[:, None] * v_n + channel[None, :], mask=known, other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(values.dtype), values, input_precision=EXACT)
        total = total * fade + tl.sum(weight, axis=1)
        most = higher
    mixed = mixed / total[:, None]
    place = out + image * out_b + head * out_h + row[:, None] * out_n + channel[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _log2(count, known):
    return tl.log2(tl.load(count, mask=known, other=1.0).to(tl.float32))


def _attended(q: Tensor, k: Tensor, v: Tensor, size: Tensor | None, scale: float) -> Tensor:
    """Room for the result."""
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)


@operator("patchslim::attend", _attended)
def attend(q: Tensor, k: Tensor, v: Tensor, size: Tensor | None, scale: float) -> Tensor:
    """softmax(scale · q kᵀ + log size) v: (B, H, n, d_h), twice (B, H, n_in, d_h), (B or 1, n_in) → (B, H, n, d_h).

    Any strides but the last; the result lies in memory as (B, n, H, d_h), which is what the projection reads.
    """
    batch, heads, n, width = q.shape
    n_in = k.shape[2]
    if size is None and not worth_launching(("attend", q.device, q.dtype, *q.shape, n_in)):
        mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
        return mixed.transpose(1, 2).contiguous().transpose(1, 2)
    q, k, v, every = dense(q), dense(k), dense(v), None if size is None else dense(size)
    out = _attended(q, k, v, size, scale)
    channels = max(16, triton.next_power_of_2(width))
    rows, keys, stages = _tile(batch * n_in, channels * k.element_size())
    with torch.cuda.device_of(q):  # a launch goes to the current device
        _attend[(batch * heads, triton.cdiv(n, rows))](
            q, k, v, every, out,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            0 if every is None or len(every) == 1 else every.stride(0), *out.stride()[:3], heads, n, n_in, scale,
            WIDTH=width, ROWS=rows, KEYS=keys, CHANNELS=channels, EXACT=exact(q.dtype), SIZED=every is not None,
            num_warps=4, num_stages=stages,
        )  # fmt: skip
    return out


def _tile(tokens: int, line: int) -> tuple[int, int, int]:
    """Rows, keys and stages of a program, fast on an H200 (docs/notebook/decisions.md): for few tokens of a batch many
    programs of few rows, else larger ones; smaller where lines of so many bytes would not fit."""
    if line > LINE:
        return 64, 32, 2
    return (16, 128, 2) if tokens <= FEW_ROWS else (64, 32, 3)


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
    q, k, size = dense(q), dense(k), dense(size)
    out = _rows(q, k, size, scale)
    with torch.cuda.device_of(k):  # a launch goes to the current device
        _class_rows[(batch * heads,)](
            q, k, size, out,
            q.stride(0), q.stride(1), *k.stride()[:3], size.stride(0) if size.shape[0] > 1 else 0,
            heads, n_in, scale,
            WIDTH=width, KEYS=triton.next_power_of_2(n_in), CHANNELS=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
    return out


def dense(x: Tensor) -> Tensor:
    """The tensor with its last axis in one piece, as kernels read it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def exact(dtype: torch.dtype) -> str:
    """How products of a dtype are taken: fp32 is not rounded to TF32."""
    return "ieee" if dtype == torch.float32 else "tf32"
