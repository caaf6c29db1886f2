"""The images of a recovery: those it learns from, and those that tell when to stop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from patchslim.data import TrainingSource
from patchslim.data.views import mix
from patchslim.errors import DataError
from patchslim.hosts import HostInfo

MOST_HELD_OUT = 512
CPU = torch.device("cpu")
SPLIT = 1  # keeps the split's random numbers apart from those of the shuffling


@dataclass
class Parts:
    """A source split in two. The held-out images are read once and stay on the device, as the model sees them."""

    training: TrainingSource
    held_out: TrainingSource
    batch_size: int
    device: torch.device = CPU
    kept: list[tuple[Tensor, Tensor]] | None = None

    def held_out_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Held-out images (B, C, H, W) and labels (B,), always the same."""
        if self.kept is None:
            batches = self.held_out.batches(self.batch_size)
            self.kept = [(images.to(self.device), labels.to(self.device)) for images, labels in batches]
        return iter(self.kept)


def split(source: TrainingSource, share: float, seed: int, batch_size: int, device: torch.device = CPU) -> Parts:
    """Hold out a seeded share of the images: at least 1, at most 512, and at least 1 is left to learn from."""
    if len(source) < 2:
        raise DataError(f"{source.name} has {len(source)} image, but recovery needs 2: to learn from, and to stop by.")
    count = min(max(1, round(len(source) * share)), MOST_HELD_OUT, len(source) - 1)
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(mix(seed, SPLIT))).tolist()
    training, held_out = (source.subset(sorted(part)) for part in (order[count:], order[:count]))
    return Parts(training, held_out, batch_size, device)


def labelled_part(source: TrainingSource, classes: int) -> TrainingSource:
    """The images that have a label, all of them within the head's range."""
    known = [index for index, label in enumerate(source.labels) if label >= 0]
    if not classes:
        raise DataError("The model has no classes to learn labels with; leave supervised training out.")
    if not known:
        raise DataError(f"{source.name} has no labels, so leave supervised training out: distillation needs none.")
    most = max(source.labels)
    if most >= classes:
        raise DataError(
            f"{source.name} has a label {most}, but the model's head has {classes} classes; "
            "use images of the classes the model was trained on."
        )
    return source if len(known) == len(source) else source.subset(known)


def check_images(source: TrainingSource, info: HostInfo) -> None:
    """Raise DataError unless the images are as large as the model's."""
    if tuple(source.image_size) != tuple(info.image_size):
        (height, width), (own_height, own_width) = source.image_size, info.image_size
        raise DataError(
            f"The images in {source.name} are {width}x{height} pixels, the model takes {own_width}x{own_height}; "
            "open them with the model, or resize them."
        )
