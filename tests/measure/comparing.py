"""What tests of comparisons share: images, settings that are quick, and methods from anywhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.errors import RecoverError
from patchslim.measure import CompareConfig, SpeedConfig
from patchslim.methods import Fitted, Task
from patchslim.recover import RecoverConfig
from small import make_images

IMAGES = tensor_images(make_images(8))
SPEED = SpeedConfig(batch_size=2, seconds=0.01)
QUICK = CompareConfig(speed=SPEED, batch_size=8)
LEARN = CompareConfig(RecoverConfig(epochs=1, block_epochs=0, batch_size=8, ema=0.0), SPEED, 8, 16)


def labelled(model: nn.Module, count: int = 48) -> Any:
    """Images whose label is mostly what the model says."""
    images = make_images(count, seed=9)
    with torch.no_grad():
        labels = model(images).argmax(dim=1)
    labels[::5] = 0
    return tensor_images(images, labels)


class Named:
    """A method from anywhere that counts how often it is asked."""

    def __init__(self, name: str = "mine") -> None:
        self.name, self.asked = name, 0

    def fit(self, task: Task) -> Fitted:
        """As ToMe does."""
        self.asked += 1
        return ps.methods.ToMe().fit(task)


class Broken(Named):
    """One that fails."""

    error: BaseException = RecoverError("The loss is not a finite number.")

    def fit(self, task: Task) -> Fitted:
        """Never ends well."""
        raise self.error
