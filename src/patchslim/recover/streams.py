"""The tokens between two blocks, of the slim network and of the host, for every image: what block-wise reconstruction
reads. Cached within a bound on memory and computed again past it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from patchslim.hosts import Host
from patchslim.recover.config import RecoverConfig
from patchslim.recover.outputs import through
from patchslim.slim import State

Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]
Pair = tuple[
    Tensor | State, Tensor
]  # what enters the next block: of the slim network, and Z_l of the host (B, p + N, d)


class Streams:
    """Both networks after block `layer`, in batches of one fixed composition; `advance` goes on by one block."""

    def __init__(self, student: Host, teacher: Host, batches: Batches, config: RecoverConfig) -> None:
        self.student, self.teacher, self.batches, self.config = student, teacher, batches, config
        self.device = next(student.model.parameters()).device
        self.layer = 0
        self.stored: list[Pair] = []
        used, self.whole = 0, True
        for images, _ in batches():
            pair = self._start(images)
            used += _bytes(pair)
            if used > config.cache_gib * 2**30:
                self.whole = False
                break
            self.stored.append(pair)

    def advance(self) -> None:
        """Go through the next block, as it is now."""
        self.stored = [self._through(pair, self.layer) for pair in self.stored]
        self.layer += 1

    def __iter__(self) -> Iterator[Pair]:
        yield from self.stored
        if self.whole:
            return
        for index, (images, _) in enumerate(self.batches()):
            if index >= len(self.stored):
                pair = self._start(images)
                for layer in range(self.layer):
                    pair = self._through(pair, layer)
                yield pair

    @torch.no_grad()
    def _start(self, images: Tensor) -> Pair:
        images = images.to(self.device)
        with self.config.autocast(self.device):
            return self.student.embed(images).float(), self.teacher.embed(images).float()

    @torch.no_grad()
    def _through(self, pair: Pair, layer: int) -> Pair:
        with self.config.autocast(self.device):
            _, x = through(self.student.blocks[layer], pair[0], tracks=True)
            return x, self.teacher.blocks[layer](pair[1], None)


def _bytes(pair: Pair) -> int:
    """What a batch takes, as it enters block 1; where images choose, the sources come to it."""
    x, z = pair
    assert isinstance(x, Tensor)
    batch, tokens, _ = z.shape
    return 2 * z.numel() * z.element_size() + batch * tokens * tokens
