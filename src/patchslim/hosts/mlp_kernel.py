"""A Triton kernel for the first half of an MLP, a linear layer and GELU in one: what lies between them is the largest
tensor of a block, and on a GPU taking it through memory twice costs as much as the layer itself.

`F.gelu(F.linear(…))` says what it computes and takes over elsewhere: on a CPU, in training, in an export.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

GROUP = tl.constexpr(8)  # tiles of rows that share weights in the cache


@triton.jit
def _gelu(x):
    """x Φ(x), with the tail of Φ by Abramowitz and Stegun 7.1.26: 1e-7 off at most, far less than half precision."""
    size = tl.abs(x)
    t = 1.0 / (1.0 + 0.23164189 * size)  # p / √2
    poly = t * (0.127414796 + t * (-0.142248368 + t * (0.710706870 + t * (-0.726576013 + t * 0.530702714))))
    tail = poly * tl.exp2(-0.7213475204 * size * size)  # Φ(-|x|); exp(-x² / 2)
    return tl.where(x < 0, x * tail, x - x * tail)


@triton.jit
def _linear_gelu(
    x, weight, bias, out, rows, wide, deep, x_m, weight_n, out_m,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One tile of the result."""
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(wide, COLUMNS)
    group = tl.program_id(0) // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    row = ((group * GROUP + within % height) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = (within // height) * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.arange(0, DEPTH)
    left = x + (row % rows)[:, None] * x_m + channel[None, :]  # rows past the end repeat others and are not kept
    right = weight + (column % wide)[None, :] * weight_n + channel[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, deep, DEPTH):
        known = begin + channel < deep
        a = tl.load(left + begin, mask=known[None, :], other=0.0)
        b = tl.load(right + begin, mask=known[:, None], other=0.0)
        total = tl.dot(a, b, total)
    total += tl.load(bias + column, mask=column < wide, other=0.0).to(tl.float32)[None, :]
    place = out + row[:, None] * out_m + column[None, :]
    tl.store(place, _gelu(total).to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < wide)[None, :])


@custom_op("patchslim::linear_gelu", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x Wᵀ + b): (…, d), (h, d), (h) → (…, h), in half precision."""
    wide, deep = weight.shape
    flat = x.reshape(-1, deep)
    out = _half(x, weight, bias)
    rows = flat.shape[0]
    tile = (128, 128, 64) if rows > 2048 else (64, 64, 64)
    with torch.cuda.device_of(x):  # a launch goes to the current device
        _linear_gelu[(triton.cdiv(rows, tile[0]) * triton.cdiv(wide, tile[1]),)](
            flat, weight, bias, out, rows, wide, deep, flat.stride(0), weight.stride(0), wide,
            ROWS=tile[0], COLUMNS=tile[1], DEPTH=tile[2], num_warps=8 if rows > 2048 else 4, num_stages=3,
        )  # fmt: skip
    return out


def _half(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Room for the result."""
    return x.new_empty(*x.shape[:-1], weight.shape[0])


linear_gelu.register_fake(_half)
