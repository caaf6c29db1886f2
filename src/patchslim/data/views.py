"""Training views: which images in which order, and random numbers that depend on nothing but seed, epoch and image.

So a run that goes on where it was interrupted sees what it would have seen, whatever the number of reading processes.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset

from patchslim.data.items import Item
from patchslim.data.reading import Reading, read_item
from patchslim.data.transform import Transform

Place = tuple[int, int]  # (epoch, image)


@dataclass(frozen=True)
class Order:
    """Every image once per epoch, shuffled, in batches; the epochs from `first` to `epochs` one after the other.

    A last batch that would be short is left out: its images would weigh more than others.
    """

    count: int
    batch_size: int
    epochs: int
    seed: int
    first: int = 0

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return max(1, self.count // self.batch_size)

    def __len__(self) -> int:
        return self.steps * max(0, self.epochs - self.first)

    def __iter__(self) -> Iterator[list[Place]]:
        for epoch in range(self.first, self.epochs):
            generator = torch.Generator().manual_seed(mix(self.seed, epoch))
            order = torch.randperm(self.count, generator=generator).tolist()
            for step in range(self.steps):
                yield [(epoch, image) for image in order[step * self.batch_size : (step + 1) * self.batch_size]]


class ViewDataset(Dataset[Reading]):
    """Reads an item as it looks in an epoch."""

    def __init__(self, items: Sequence[Item], transform: Transform, seed: int) -> None:
        self.items, self.transform, self.seed = items, transform, seed

    def __getitem__(self, place: Place) -> Reading:
        with seeded(self.seed, *place):
            return read_item(self.items[place[1]], self.transform)


def mix(*numbers: int) -> int:
    """One seed out of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


@contextmanager
def seeded(*numbers: int, device: torch.device | None = None) -> Iterator[None]:
    """Inside, random numbers of Python, numpy and torch depend on these numbers alone; then they are as before."""
    before = random.getstate(), np.random.get_state()
    seed = mix(*numbers)
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        random.seed(seed)
        np.random.seed(seed)
        # Not torch.manual_seed: it would reach for the GPU from a reading process.
        torch.default_generator.manual_seed(seed)
        for place in devices:
            torch.cuda.default_generators[place.index or 0].manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
