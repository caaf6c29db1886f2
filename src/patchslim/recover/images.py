"""The images of a recovery: those it learns from, those that tell when to stop, and how they look to both networks."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from patchslim.data import AnyImages, Images, TrainingSource, as_source
from patchslim.data.transform import Style, Transform, training_transform_for, transform_for
from patchslim.data.views import Order, mix
from patchslim.errors import DataError
from patchslim.hosts import Host, HostInfo
from patchslim.recover.config import RecoverConfig

MOST_HELD_OUT = 512
SPLIT = 1  # keeps the split's random numbers apart from those of the shuffling
MILD_CROP = 0.8  # of images whose mirror image is something else: there, place and size matter too
ROOM = 4  # free memory of a GPU against what pictures kept there may take
CPU = torch.device("cpu")


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


def training_source(images: AnyImages, info: HostInfo) -> TrainingSource:
    """The images as something to train on, of the model's size."""
    source = as_source(images, info)
    if not isinstance(source, TrainingSource):
        raise DataError(
            f"A {type(images).__name__} can't be trained on; give a tensor (K, C, H, W) or what open_images returns."
        )
    return source


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
            "use images of the classes the model was trained on, or name the classes in its order with --classes."
        )
    return source if len(known) == len(source) else source.subset(known)


@dataclass(frozen=True)
class Views:
    """Crops and, where they make sense, mirror images; strong ones have what supervised training wants besides."""

    transform: Transform
    style: Style
    keep_bytes: float  # pictures that take less are read once and kept

    def batches(self, source: TrainingSource, order: Order, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """A batch of views for each of the order's, smaller where images are bad; on the device where that is free."""
        plain = self.style.rand_augment is None and not self.style.erase
        if plain and isinstance(source, Images) and source.canvas_bytes <= self.keep_bytes:
            canvases = source.canvases(roomy(device, source.canvas_bytes))
            return canvases.views(self.transform, self.style, order)
        return source.views(self.transform, order)


def roomy(device: torch.device, size: int) -> torch.device:
    """The device, or the CPU where so many bytes would take too much of a GPU's memory."""
    if device.type != "cuda":
        return CPU
    free, _ = torch.cuda.mem_get_info(device)
    return device if size * ROOM <= free else CPU


def views_for(student: Host, source: TrainingSource, config: RecoverConfig, strong: bool = False) -> Views:
    """The views that suit a source; `strong` adds what supervised training wants."""
    crop = config.crop_scale if source.mirrors else max(MILD_CROP, config.crop_scale)
    augment, erase = (config.rand_augment or None, config.erase) if strong else (None, 0.0)
    style = Style(crop, source.mirrors, augment, erase)
    if student.info.channels not in (1, 3):
        return Views(transform_for(None), style, 0)  # such a model takes tensors only, and they stay as they are
    return Views(training_transform_for(student.model, style), style, config.pictures_gib * 2**30)
