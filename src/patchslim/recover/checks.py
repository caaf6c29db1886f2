"""What a recovery refuses to begin with."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from patchslim.data import ImageSource, TrainingSource, as_source
from patchslim.errors import DataError, RecoverError
from patchslim.hosts import Host, HostInfo, open_host
from patchslim.recover.parts import Parts, check_images
from patchslim.slim import made_from

NAMES = ("name", "family", "parameters", "blocks")  # what may differ, and what follows from the rest


def check_slim(slim: nn.Module) -> HostInfo:
    """The host that a model was made from, if it was."""
    info = made_from(slim)
    if info is None:
        raise RecoverError("Only a slim model can be recovered; make one with patchslim.slim or load a run.")
    return info


def open_teacher(teacher: nn.Module, slim: nn.Module, info: HostInfo) -> Host:
    """A frozen copy of the original network on the slim model's device; RecoverError when it is another network."""
    if made_from(teacher) is not None:
        raise RecoverError("The teacher is a slim model; give the network that this one was made from.")
    host = open_host(copy.deepcopy(teacher).eval().requires_grad_(False).to(next(slim.parameters()).device))
    own, other = asdict(info), asdict(host.info)
    for name in own:
        if name not in NAMES and own[name] != other[name]:
            raise RecoverError(
                f"The teacher is another network: {name.replace('_', ' ')} is {other[name]}, the slim model was made "
                f"from one with {own[name]}; give that one."
            )
    return host


def training_source(images: ImageSource | Tensor, info: HostInfo) -> TrainingSource:
    """The images as something to train on, of the model's size."""
    source = as_source(images)
    if not isinstance(source, TrainingSource):
        raise DataError(
            f"A {type(images).__name__} can't be trained on; give a tensor (K, C, H, W) or what open_images returns."
        )
    check_images(source, info)
    return source


def check_channels(parts: Parts, info: HostInfo) -> None:
    """Raise DataError unless the images have the model's channels; tensors may have any."""
    images, _ = next(parts.held_out_batches())
    if images.shape[1] != info.channels:
        raise DataError(
            f"The images have {images.shape[1]} channels, the model takes {info.channels}; give images for this model."
        )


def check_finite(measured: dict[str, Any]) -> dict[str, Any]:
    """What was measured at the start, if it can be the start of anything."""
    if not math.isfinite(measured["loss"]):
        raise RecoverError(
            "The loss is not a finite number before anything was learnt; "
            "the weights of the model or of the teacher are broken."
        )
    return measured
