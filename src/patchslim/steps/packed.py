"""Batches in which images keep different numbers of patches, packed one after the other without filling, and attention
within each image of them."""

import functools
import warnings
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.errors import PatchslimWarning
from patchslim.kernels.attention import Mix, plain

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # a torch built without it
    varlen_attn = None  # type: ignore[assignment]

HALF = (torch.float16, torch.bfloat16)  # in which packed attention runs, on NVIDIA's and AMD's GPUs


class Packed(NamedTuple):
    """All images' tokens on one axis; each image's prefix first, then its patches in the host's order."""

    x: Tensor  # (1, T, d)
    lengths: list[int]  # tokens per image, prefix included
    place: Tensor  # (T,): the input patch at which each token sits; anything for prefix tokens
    patches: int  # N, of the host

    def mix(self, kept: "Packed") -> Mix:
        """Attention of some kept tokens to these, within each image."""
        return PackedMix(kept.lengths, self.lengths)

    def counts(self, prefix: int) -> list[int]:
        """Patch tokens of each image."""
        return [length - prefix for length in self.lengths]

    def rows(self, prefix: int) -> Tensor:
        """Which input patch each patch token is: (B, n, N) boolean; rows that an image lacks are False."""
        most = max(self.lengths, default=prefix) - prefix
        rows = torch.zeros(len(self.lengths), most, self.patches, dtype=torch.bool, device=self.x.device)
        for image, places in enumerate(self.place.split(self.lengths)):
            own = places[prefix:]
            rows[image, torch.arange(len(own)), own] = True
        return rows

    def tensor(self) -> Tensor:
        """What leaves the last block, where all images keep alike: (B, p + n, d)."""
        return self.x.reshape(len(self.lengths), max(self.lengths, default=self.patches), self.x.shape[-1])

    def keeping(self, stay: Tensor, prefix: int) -> "Packed":
        """The prefix and the patches that stay: stay (B, t) on the grid."""
        index, real = grid(self.lengths, self.x.device, prefix)
        keep = torch.ones(self.x.shape[1], dtype=torch.bool, device=self.x.device)
        keep[index[real]] = stay[real]
        lengths = (stay.sum(dim=1) + prefix).tolist()
        chosen = keep.nonzero()[:, 0]
        return Packed(self.x[:, chosen], lengths, self.place[chosen], self.patches)

    def only_prefix(self, prefix: int) -> "Packed":
        """No patch stays."""
        if max(self.lengths, default=prefix) == prefix:
            return self
        return self.keeping(torch.zeros_like(grid(self.lengths, self.x.device, prefix)[1]), prefix)


def pack(x: Tensor, prefix: int) -> Packed:
    """A batch that enters block 1: (B, p + N, d)."""
    batch, tokens, width = x.shape
    place = (torch.arange(tokens, device=x.device) - prefix).clamp_min(0).repeat(batch)
    return Packed(x.reshape(1, batch * tokens, width), [tokens] * batch, place, tokens - prefix)


def grid(lengths: list[int], device: torch.device, skip: int = 0) -> tuple[Tensor, Tensor]:
    """Images by tokens, the first `skip` of each left out: token numbers, 0 where an image is shorter, and where they
    are real, both (B, longest)."""
    length = torch.tensor(lengths, device=device)
    begin = length.cumsum(0) - length + skip
    column = torch.arange(max(lengths, default=skip) - skip, device=device)
    real = column < (length - skip)[:, None]
    return torch.where(real, begin[:, None] + column, 0), real


@dataclass(frozen=True)
class PackedMix:
    """Image b has `lengths[b]` queries and `lengths_in[b]` keys, and none sees another's.

    All images' tokens lie one after the other on one axis: q (1, H, T, d_h), k and v (1, H, T_in, d_h).
    """

    lengths: list[int]
    lengths_in: list[int]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        """The kernel for packed batches where the device has one, else its equivalent."""
        if not self.lengths:  # a batch of no images
            return v[:, :, :0]
        if fused and varlen_attn is not None and q.is_cuda and q.dtype in HALF:
            return self._varlen(q, k, v, scale)
        if fused:
            say_once(q.device.type, q.dtype)
        if not fused or q.device.type == "cpu":
            return self._one_by_one(q, k, v, scale=scale, dropout=dropout, fused=fused)
        return self._padded(q, k, v, scale)

    def _one_by_one(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        images = zip(q.split(self.lengths, 2), k.split(self.lengths_in, 2), v.split(self.lengths_in, 2), strict=True)
        return torch.cat([plain(*image, **how) for image in images], dim=2)

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        counts = (self.lengths, self.lengths_in)
        q, k, v = (part[0].transpose(0, 1).contiguous() for part in (q, k, v))  # (T, H, d_h)
        ends, ends_in = (torch.tensor([0, *accumulate(own)], dtype=torch.int32, device=q.device) for own in counts)
        mixed: Any = varlen_attn(q, k, v, ends, ends_in, max(self.lengths), max(self.lengths_in), scale=scale)
        return mixed.transpose(0, 1)[None]  # type: ignore[no-any-return]

    def _padded(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attention on filled-up images with the filling masked; everything else in the block stays packed."""
        own, real = grid(self.lengths, q.device)
        seen, there = grid(self.lengths_in, q.device)
        q, k, v = (part[0][:, index].transpose(0, 1) for part, index in ((q, own), (k, seen), (v, seen)))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None, :], scale=scale)
        return out.transpose(0, 1)[:, real][None]


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
