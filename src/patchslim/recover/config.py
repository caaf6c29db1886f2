"""The settings of a recovery."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import torch

from patchslim.errors import RecoverError, plain_number
from patchslim.files import essential

Amp = Literal["auto", "bf16", "off"]

USUAL_STEPS, MOST_EPOCHS = 5_000, 100  # of distillation, unless said otherwise
_FROM_ZERO = (
    *("epochs", "block_epochs", "supervised_epochs", "weight_decay", "mixup", "cutmix", "seed"),
    *("feature_weight", "patch_weight", "distill_weight", "token_weight", "cache_gib", "pictures_gib"),
)
_FROM_ONE = ("batch_size", "block_batch_size", "block_images", "patience")


@dataclass(frozen=True)
class RecoverConfig:
    """How a slim model gets its accuracy back. By default no labels are used.

    Three stages, each of which can be left out with 0 epochs: block by block on cached features; distillation from the
    original network; the DeiT recipe with labels.
    """

    epochs: int | None = None  # of distillation; None: as many as make 5,000 steps, at most 100
    block_epochs: int = 1  # of block-wise reconstruction
    supervised_epochs: int = 0
    learning_rate: float = 3e-5  # of distillation and supervised training, at its peak
    block_learning_rate: float = 3e-5
    vector_factor: float = 30.0  # on it for gains and biases, where there are no labels
    weight_decay: float = 0.01
    warmup: float = 0.1  # share of the steps in which the learning rate rises
    batch_size: int = 128
    block_batch_size: int = 64
    block_images: int = 512  # at most so many are used block by block: each block goes through them anew
    held_out: float = 0.1  # share of the images that decides when to stop; at most 512 images
    patience: int = 20  # epochs without a better loss on held-out images
    clip: float = 1.0  # bound on the gradient's norm
    temperature: float = 4.0  # of the distilled probabilities: high ones compare what is said of all classes
    feature_weight: float = 1.0  # of the relative error of what the head reads
    patch_weight: float = 0.0  # of the relative error of the deepest patches
    layer_decay: float = 1.0  # factor on the learning rate from each block to the one before
    drop_path: float = 0.1  # stochastic depth, here and below of supervised training
    mixup: float = 0.8
    cutmix: float = 1.0
    smoothing: float = 0.1
    rand_augment: str = "rand-m9-mstd0.5-inc1"  # timm's words; empty for none
    erase: float = 0.25  # random erasing
    distill_weight: float = 0.0  # of the distillation loss beside the labels
    token_weight: float = 0.5  # of token labels, where the network has a head on its patches (LV-ViT)
    ema: float = 0.999  # decay of the moving average of weights, warmed up; 0 for none
    crop_scale: float = 0.35  # smallest share of the picture that a training view shows
    amp: Amp = "auto"  # bf16 on a GPU; some CPUs are faster in it too, and a little is lost by it
    cache_gib: float = 4.0  # bound on features cached block by block; past it they are computed again
    pictures_gib: float = 4.0  # bound on pictures kept decoded; past it views are cut from the files, in every epoch
    seed: int = 0

    def __post_init__(self) -> None:
        for own in fields(self):
            value, kind = getattr(self, own.name), int if own.name == "epochs" else type(own.default)
            if value is not None and kind in (int, float):
                plain_number(own.name, value, kind, error=RecoverError)
        if self.amp not in get_args(Amp):
            raise RecoverError(f"There is no amp {self.amp!r}; choose one of {', '.join(get_args(Amp))}.")
        for low, names in ((0, _FROM_ZERO), (1, _FROM_ONE)):
            for name in names:
                value = getattr(self, name)
                if value is not None and not low <= value < math.inf:
                    raise RecoverError(f"{name} has to be a number from {low} on, not {value}.")
        for name in ("learning_rate", "block_learning_rate", "vector_factor", "temperature", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise RecoverError(f"{name} has to be a number above 0, not {getattr(self, name)}.")
        for name in ("warmup", "held_out", "drop_path", "smoothing", "erase", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise RecoverError(f"{name} has to be a share from 0 to below 1, not {getattr(self, name)}.")
        for name in ("crop_scale", "layer_decay"):
            if not 0 < getattr(self, name) <= 1:
                raise RecoverError(f"{name} has to be above 0 and at most 1, not {getattr(self, name)}.")
        if not (self.epochs is None or self.epochs or self.block_epochs or self.supervised_epochs):
            raise RecoverError("With 0 epochs of everything there is nothing to do; give some.")

    def epochs_over(self, images: int) -> int:
        """Epochs of distillation over so many training images."""
        if self.epochs is not None:
            return self.epochs
        steps = max(1, images // self.batch_size)
        return min(MOST_EPOCHS, math.ceil(USUAL_STEPS / steps))

    def autocast(self, device: torch.device) -> torch.autocast:
        """Where the forward passes run: in bf16 on a GPU, unless said otherwise."""
        half = self.amp == "bf16" or (self.amp == "auto" and device.type == "cuda")
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=half)

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON-able values."""
        return asdict(self)

    def decisive(self) -> dict[str, Any]:
        """The settings that the result depends on: all but the bounds on memory that change no number."""
        return dict(essential(asdict(self)))
