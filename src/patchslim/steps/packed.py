"""Batches in which images keep different numbers of patches: packed, one image after the other, without filling."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from patchslim.kernels.attention import Mix
from patchslim.steps.packed_attention import PackedMix


class Packed(NamedTuple):
    """All images' tokens on one axis; each image's prefix first, then its patches in the host's order."""

    x: Tensor  # (1, T, d)
    lengths: list[int]  # tokens per image, prefix included
    place: Tensor  # (T,): the input patch at which each token sits; anything for prefix tokens
    patches: int  # N, of the host

    def mix(self, kept: Packed) -> Mix:
        """Attention of some kept tokens to these, within each image."""
        return PackedMix(kept.lengths, self.lengths)

    def counts(self, prefix: int) -> list[int]:
        """Patch tokens of each image."""
        return [length - prefix for length in self.lengths]

    def rows(self, prefix: int) -> Tensor:
        """Which input patch each patch token is: (B, n, N) boolean; rows that an image lacks are False."""
        most = max(self.lengths) - prefix
        rows = torch.zeros(len(self.lengths), most, self.patches, dtype=torch.bool, device=self.x.device)
        for image, places in enumerate(self.place.split(self.lengths)):
            own = places[prefix:]
            rows[image, torch.arange(len(own)), own] = True
        return rows

    def tensor(self) -> Tensor:
        """What leaves the last block, where all images keep alike: (B, p + n, d)."""
        return self.x.reshape(len(self.lengths), -1, self.x.shape[-1])

    def grid(self, prefix: int) -> tuple[Tensor, Tensor]:
        """Images by patches: token numbers, and where they are real, both (B, t)."""
        length = torch.tensor(self.lengths, device=self.x.device)
        begin = length.cumsum(0) - length + prefix
        column = torch.arange(max(self.lengths) - prefix, device=self.x.device)
        real = column < (length - prefix)[:, None]
        return torch.where(real, begin[:, None] + column, 0), real

    def keeping(self, stay: Tensor, prefix: int) -> Packed:
        """The prefix and the patches that stay: stay (B, t) on the grid."""
        index, real = self.grid(prefix)
        keep = torch.ones(self.x.shape[1], dtype=torch.bool, device=self.x.device)
        keep[index[real]] = stay[real]
        lengths = (stay.sum(dim=1) + prefix).tolist()
        chosen = keep.nonzero()[:, 0]
        return Packed(self.x[:, chosen], lengths, self.place[chosen], self.patches)

    def only_prefix(self, prefix: int) -> Packed:
        """No patch stays."""
        if max(self.lengths) == prefix:
            return self
        return self.keeping(torch.zeros_like(self.grid(prefix)[1]), prefix)


def pack(x: Tensor, prefix: int) -> Packed:
    """A batch that enters block 1: (B, p + N, d)."""
    batch, tokens, width = x.shape
    place = (torch.arange(tokens, device=x.device) - prefix).clamp_min(0).repeat(batch)
    return Packed(x.reshape(1, batch * tokens, width), [tokens] * batch, place, tokens - prefix)
