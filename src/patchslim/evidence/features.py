"""The host's features on the calibration images, cached within a bound on memory and computed again past it."""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from patchslim.data import ImageSource
from patchslim.errors import DataError
from patchslim.hosts import Host


class Features:
    """Z_0 … Z_L of every image, in batches of one fixed composition.

    If all layers of all images fit the bound they are computed once. If not, `focus` keeps the layers at work, of as
    many batches as fit; other batches run through the host each time they are asked for.
    """

    def __init__(self, host: Host, images: ImageSource, batch_size: int, limit_bytes: float) -> None:
        self.host, self.images, self.batch_size, self.limit_bytes = host, images, batch_size, limit_bytes
        self.layers, self.stored = frozenset[int](), list[dict[int, Tensor]]()
        self.count = 0  # images really read, known after the first pass
        info = host.info
        self.keeps_all = len(images) * info.tokens * info.width * 4 * (info.depth + 1) <= limit_bytes
        self.device = next(host.model.parameters()).device

    def focus(self, layers: Sequence[int]) -> None:
        """Have these layers at hand for the passes to come."""
        wanted = frozenset(range(self.host.info.depth + 1)) if self.keeps_all else frozenset(layers)
        if wanted == self.layers and self.count:
            return
        self.layers, self.stored, self.count = wanted, [], 0
        used, room = 0, True
        for images, _ in self.images.batches(self.batch_size):
            features = self._compute(images, wanted)
            self.count += len(images)
            used += sum(z.numel() * z.element_size() for z in features.values())
            room = room and used <= self.limit_bytes
            if room:
                self.stored.append(features)
        if not self.count:
            raise DataError(f"There are no images in {self.images.name} to calibrate on.")

    def batches(self, *layers: int) -> Iterator[tuple[Tensor, ...]]:
        """For each batch the asked layers' features (B, p + N, d), in order."""
        for stored in self.stored:
            yield tuple(stored[layer] for layer in layers)
        held = sum(len(next(iter(stored.values()))) for stored in self.stored)
        if held < self.count:
            for images, _ in islice(self.images.batches(self.batch_size), len(self.stored), None):
                features = self._compute(images, frozenset(layers))
                yield tuple(features[layer] for layer in layers)

    @torch.no_grad()
    def _compute(self, images: Tensor, layers: frozenset[int]) -> dict[int, Tensor]:
        x = self.host.embed(images.to(self.device))
        found = {0: x} if 0 in layers else {}
        for layer, block in enumerate(self.host.blocks[: max(layers)], start=1):
            x = block(x, None)  # no mask: some layers of transformers have to be told
            if layer in layers:
                found[layer] = x
        return found
