"""How training images look to both networks."""

from __future__ import annotations

from patchslim.data import TrainingSource
from patchslim.data.transform import Style, Transform, training_transform_for, transform_for
from patchslim.hosts import Host
from patchslim.recover.config import RecoverConfig

MILD_CROP = 0.8  # of images whose mirror image is something else: there, place and size matter too


def view_transform(student: Host, source: TrainingSource, config: RecoverConfig, strong: bool = False) -> Transform:
    """Crops and, where they make sense, mirror images; `strong` adds what supervised training wants."""
    if student.info.channels not in (1, 3):
        return transform_for(None)  # such a model takes tensors only, and they stay as they are
    crop = config.crop_scale if source.mirrors else max(MILD_CROP, config.crop_scale)
    style = Style(crop, source.mirrors)
    if strong:
        style = Style(crop, source.mirrors, config.rand_augment or None, config.erase)
    return training_transform_for(student.model, style)
