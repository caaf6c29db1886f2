"""How training images look to both networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from patchslim.data import Images, TrainingSource
from patchslim.data.transform import Style, Transform, training_transform_for, transform_for
from patchslim.data.views import Order
from patchslim.hosts import Host
from patchslim.recover.config import RecoverConfig

MILD_CROP = 0.8  # of images whose mirror image is something else: there, place and size matter too
ROOM = 4  # free memory of a GPU against what pictures kept there may take


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
        return torch.device("cpu")
    free, _ = torch.cuda.mem_get_info(device)
    return device if size * ROOM <= free else torch.device("cpu")


def views_for(student: Host, source: TrainingSource, config: RecoverConfig, strong: bool = False) -> Views:
    """The views that suit a source; `strong` adds what supervised training wants."""
    crop = config.crop_scale if source.mirrors else max(MILD_CROP, config.crop_scale)
    style = Style(crop, source.mirrors)
    if strong:
        style = Style(crop, source.mirrors, config.rand_augment or None, config.erase)
    if student.info.channels not in (1, 3):
        return Views(transform_for(None), style, 0)  # such a model takes tensors only, and they stay as they are
    return Views(training_transform_for(student.model, style), style, config.pictures_gib * 2**30)
