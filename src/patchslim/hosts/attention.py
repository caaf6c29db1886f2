"""Attention's two products, the ways slim blocks need them. A host projects; these mix.

Shapes: queries q (B, H, n, d_h), keys k and values v (B, H, n_in, d_h) → (B, H, n, d_h).
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.hosts.fast import KERNELS, kernels_for, small_kernel_for

if KERNELS:
    from patchslim.hosts import kernels

ALIGNED = 8  # fused kernels want head widths that are multiples of this


class Mix(Protocol):
    """One way to mix values by attention."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        """softmax(scale · q kᵀ + …) v: (B, H, n, d_h); `dropout` is 0 outside training."""


def plain(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
    """Every key counts once."""
    if fused and small_kernel_for(k):
        mixed: Tensor = kernels.attend(q, k, v, None, scale)
        return mixed
    if fused:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
    return F.dropout((q * scale @ k.transpose(-2, -1)).softmax(dim=-1), dropout) @ v


def sized(size: Tensor) -> Mix:
    """A key that stands for s input patches counts s times: log(s) is added to its logits.

    `size` is (B, n_in), or (1, n_in) where it is the same for every image.
    """

    # A closure and not a callable object: torch.compile of 2.11 can't trace a call to the latter.
    def mix(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        if fused and kernels_for(k):
            mixed: Tensor = kernels.attend(q, k, v, size, scale)
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
