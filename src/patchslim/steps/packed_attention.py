"""Attention within each image of a packed batch, where images have different numbers of tokens.

Shapes: all images' tokens lie one after the other on one axis, q (1, H, T, d_h), k and v (1, H, T_in, d_h).
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.errors import PatchslimWarning
from patchslim.kernels.attention import plain

varlen_attn: Any
try:
    from torch.nn.attention import varlen

    varlen_attn = varlen.varlen_attn
except ImportError:  # a torch built without it
    varlen_attn = None

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class PackedMix:
    """Image b has `lengths[b]` queries and `lengths_in[b]` keys, and none sees another's."""

    lengths: Sequence[int]
    lengths_in: Sequence[int]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        """The kernel for packed batches where the device has one, else its equivalent."""
        if not fused:
            return self._one_by_one(q, k, v, scale, dropout, fused)
        if has_varlen(q):
            return self._varlen(q, k, v, scale)
        say_once(q.device.type, q.dtype)
        if q.device.type == "cpu":
            return self._one_by_one(q, k, v, scale, dropout, fused)
        return self._padded(q, k, v, scale)

    def _spans(self) -> Iterator[tuple[slice, slice]]:
        """Where each image's queries and keys lie."""
        ends, ends_in = itertools.accumulate(self.lengths), itertools.accumulate(self.lengths_in)
        for n, n_in, end, end_in in zip(self.lengths, self.lengths_in, ends, ends_in, strict=True):
            yield slice(end - n, end), slice(end_in - n_in, end_in)

    def _one_by_one(self, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float, fused: bool) -> Tensor:
        parts = [
            plain(q[:, :, own], k[:, :, seen], v[:, :, seen], scale=scale, dropout=dropout, fused=fused)
            for own, seen in self._spans()
        ]
        return torch.cat(parts, dim=2)

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        flat = [part[0].transpose(0, 1).contiguous() for part in (q, k, v)]  # (T, H, d_h)
        ends = [
            torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=q.device)
            for lengths in (self.lengths, self.lengths_in)
        ]
        out = varlen_attn(*flat, *ends, max(self.lengths), max(self.lengths_in), scale=scale)
        return out.transpose(0, 1)[None]  # type: ignore[no-any-return]

    def _padded(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attention on filled-up images with the filling masked; everything else in the block stays packed."""
        own, real = _grid(self.lengths, q.device)
        seen, there = _grid(self.lengths_in, q.device)
        q, k, v = (part[0][:, index].transpose(0, 1) for part, index in ((q, own), (k, seen), (v, seen)))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None, :], scale=scale)
        return out.transpose(0, 1)[:, real][None]


def _grid(lengths: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token numbers (B, longest), clamped into the image where it is shorter, and where they are real (B, longest)."""
    count = torch.tensor(lengths, device=device)
    column = torch.arange(max(lengths), device=device)
    begin = count.cumsum(0) - count
    return begin[:, None] + torch.minimum(column, count[:, None] - 1), column < count[:, None]


def has_varlen(q: Tensor) -> bool:
    """Whether packed attention runs on this tensor: NVIDIA's and AMD's GPUs, half precision."""
    return varlen_attn is not None and q.is_cuda and q.dtype in HALF


@functools.cache
def say_once(device: str, dtype: torch.dtype) -> None:
    """Say that the fallback is at work, once per device and dtype."""
    how = "images attend one after the other" if device == "cpu" else "attention fills images up to the longest"
    warnings.warn(
        f"There is no packed attention for {str(dtype).removeprefix('torch.')} on {device}, so {how}; "
        "results are the same.",
        PatchslimWarning,
        stacklevel=2,
    )
