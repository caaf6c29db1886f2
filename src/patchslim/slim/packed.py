"""Threshold mode: every image keeps as many patches as it needs, and the batch runs packed, without filling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchslim.hosts.base import BlockMath
from patchslim.slim.blocks import BlockOf
from patchslim.slim.packed_attention import PackedMix
from patchslim.slim.predictor import as_fp32


class Packed(NamedTuple):
    """All images' tokens one after the other; each image's prefix first, then its patches in the host's order."""

    x: Tensor  # (1, T, d)
    lengths: list[int]  # tokens per image, prefix included
    place: Tensor  # (T,): the input patch at which each token sits; anything for prefix tokens


class PackedBlock(BlockOf):
    """Keeps the patches whose log ŝ exceeds `threshold`, and at least the best `least` of every image."""

    def __init__(
        self,
        block: nn.Module,
        math: BlockMath,
        prefix: int,
        patches: int,
        predictor: nn.Module | None,
        *,
        threshold: float,
        least: int,
        last: bool = False,
    ) -> None:
        super().__init__(block, math)
        self.prefix, self.patches, self.least, self.last = prefix, patches, least, last
        self.threshold = float("inf") if last else threshold
        self.watch: Callable[[Packed], None] | None = None
        if predictor is not None:
            self.predictor = predictor

    def forward(self, given: Tensor | Packed, mask: Tensor | None = None, **options: Any) -> Tensor | Packed:
        """The first block takes (B, p + N, d); the last one, where all images keep alike, gives (B, p + n, d)."""
        self.check_alone(mask, options)
        packed = given if isinstance(given, Packed) else self._enter(given)
        incoming = self.math.read(self, packed.x)
        kept = packed
        if self.last or hasattr(self, "predictor"):
            kept = self._choose(packed, incoming.y[0])
        x = self.math.compute(self, kept.x, incoming, PackedMix(kept.lengths, packed.lengths))
        kept = kept._replace(x=x)
        if self.watch is not None:
            self.watch(kept)
        return x.reshape(len(kept.lengths), -1, x.shape[-1]) if self.last else kept

    def _enter(self, x: Tensor) -> Packed:
        self.check_tokens(x)
        batch, tokens, width = x.shape
        place = (torch.arange(tokens, device=x.device) - self.prefix).clamp_min(0).repeat(batch)
        return Packed(x.reshape(1, batch * tokens, width), [tokens] * batch, place)

    def scores(self, given: Tensor | Packed) -> Tensor:
        """log ŝ of all patches that come in, -inf where an image has fewer: (B, t)."""
        packed = given if isinstance(given, Packed) else self._enter(given)
        return self._scores(packed, self.math.read(self, packed.x).y[0], *self._grid(packed))

    def _grid(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Images by patches: token numbers and where they are real, both (B, t)."""
        length = torch.tensor(packed.lengths, device=packed.x.device)
        begin = length.cumsum(0) - length + self.prefix
        column = torch.arange(max(packed.lengths) - self.prefix, device=packed.x.device)
        real = column < (length - self.prefix)[:, None]
        return torch.where(real, begin[:, None] + column, 0), real

    def _scores(self, packed: Packed, y: Tensor, index: Tensor, real: Tensor) -> Tensor:
        """y (T, d), the grid (B, t) → (B, t)."""
        place = torch.where(real, packed.place[index], self.patches)
        return as_fp32(self.predictor(y[index], place)).masked_fill(~real, -torch.inf)

    def _choose(self, packed: Packed, y: Tensor) -> Packed:
        """y (T, d). Which tokens stay is decided on the grid."""
        if max(packed.lengths) - self.prefix == self.least:
            return packed  # no image has more than it keeps anyway
        index, real = self._grid(packed)
        stay = torch.zeros_like(real)
        if self.least > 0:
            score = self._scores(packed, y, index, real)
            stay = (score > self.threshold).scatter(1, score.topk(self.least, dim=1).indices, True)
        keep = torch.ones(len(y), dtype=torch.bool, device=y.device)
        keep[index[real]] = stay[real]
        lengths = (stay.sum(dim=1) + self.prefix).tolist()
        chosen = keep.nonzero()[:, 0]
        return Packed(packed.x[:, chosen], lengths, packed.place[chosen])
