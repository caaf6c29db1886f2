"""Attention's two products, the ways slim blocks need them. A host projects; these mix.

Shapes: queries q (B, H, n, d_h), keys k and values v (B, H, n_in, d_h) → (B, H, n, d_h). Sizes are (B, n_in), or
(1, n_in) where they are the same for every image: how many input patches each key stands for.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.kernels.available import KERNELS, kernels_for, small_kernel_for

if KERNELS:
    from patchslim.kernels import attention_triton

ALIGNED = 8  # fused kernels want head widths that are multiples of this


class Mix(Protocol):
    """One way to mix values by attention."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        """softmax(scale · q kᵀ + …) v: (B, H, n, d_h); `dropout` is 0 outside training."""


def plain(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
    """Every key counts once."""
    if fused and small_kernel_for(k):
        mixed: Tensor = attention_triton.attend(q, k, v, None, scale)
        return mixed
    if fused:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
    return F.dropout((q * scale @ k.transpose(-2, -1)).softmax(dim=-1), dropout) @ v


def sized(size: Tensor) -> Mix:
    """A key that stands for s input patches counts s times: log(s) is added to its logits. size (B or 1, n_in)."""

    # A closure and not a callable object: torch.compile of 2.11 can't trace a call to the latter.
    def mix(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        if fused and kernels_for(k):
            mixed: Tensor = attention_triton.attend(q, k, v, size, scale)
            return mixed
        log_size = size.log().to(q.dtype)
        if not fused:
            logits = q * scale @ k.transpose(-2, -1) + log_size[:, None, None, :]
            return F.dropout(logits.softmax(dim=-1), dropout) @ v
        if q.is_cuda:
            return _as_channel(q, k, v, log_size, scale, dropout)
        bias = log_size[:, None, None, :].expand(q.shape[0], 1, q.shape[2], -1)
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
    if kernels_for(k):
        every = q.new_ones(1, k.shape[2]) if size is None else size
        rows: Tensor = attention_triton.class_rows(q, k, every, scale)
        return rows.mean(dim=1)
    return attention_rows(q, k, scale, size).mean(dim=1)[:, 0]
