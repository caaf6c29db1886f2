"""What the questions are asked of: models, images in memory, methods with settings."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
import typer
from torch import Tensor, nn

from patchslim.cli.opening import open_device, open_model, workers_for
from patchslim.cli.options import split_setting
from patchslim.data import Images, ImageSource, TensorImages, open_images, tensor_images
from patchslim.data.canvas import Canvases
from patchslim.errors import BudgetError, MethodError, PlanError, RecoverError, UnsupportedModel
from patchslim.hosts import HostInfo, inspect
from patchslim.measure.paired import paired
from patchslim.methods import make

Z = 1.959963984540054  # of a 95 % interval
# What a method may fail with on one model or ratio; the other rows go on.
OWN_FAULT = (BudgetError, MethodError, PlanError, RecoverError, UnsupportedModel)

MODEL, SMALL, BASE = "deit_tiny_patch16_224", "deit_small_patch16_224", "deit_base_patch16_224"
LARGE = "vit_large_patch16_224"
DINO, DINO_LARGE = "vit_small_patch14_dinov2.lvd142m", "vit_large_patch14_dinov2.lvd142m"  # at 518 pixels
PROMISED = 0.57  # of the MACs, at which speed is told
ModelName = Annotated[str, typer.Option("--model", help="A timm name, a Hugging Face folder, or hf:NAME.")]
Weights = Annotated[Path | None, typer.Option("--checkpoint", help="The model's weights; without them random ones.")]
Methods = Annotated[
    str, typer.Option("--methods", metavar="A,B:KEY=VALUE,…", help="Methods, with settings after colons.")
]
Macs = Annotated[float, typer.Option("--target-macs", help="MACs to keep.")]
Sized = Annotated[int | None, typer.Option("--img-size", help="Image side, where it is not the model's own.")]
Where = Annotated[str | None, typer.Option("--device", help="cpu or cuda; the GPU if there is one.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of the rows.")]


@dataclass(frozen=True)
class Chosen:
    """A method of a benchmark: its name, the object, and the settings that are not its defaults."""

    name: str
    method: Any

    @property
    def settings(self) -> dict[str, Any]:
        """As a row has them."""
        own = {item.name: (getattr(self.method, item.name), item.default) for item in fields(self.method)}
        return {key: value for key, (value, usual) in own.items() if value != usual}

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])


def read_methods(text: str) -> list[Chosen]:
    """`merge,merge:blocks=none,drop` → three methods."""
    found = []
    for word in text.split(","):
        name, *settings = word.strip().split(":")
        found.append(Chosen(name, make(name, dict(map(split_setting, settings)))))
    return found


def network(
    name: str, checkpoint: Path | None, img_size: int | None = None, device: str | None = None, seed: int = 0
) -> tuple[nn.Module, HostInfo, torch.device]:
    """A model on its device, in eval mode; weights are random where none are given."""
    place = open_device(device)
    torch.manual_seed(seed)
    model = open_model(name, checkpoint, img_size=img_size)
    return model.to(place), inspect(model), place


def noise(info: HostInfo, count: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images of nothing, (count, C, H, W): what a clock needs."""
    return torch.randn(count, info.channels, *info.image_size, device=device, dtype=dtype)


def in_memory(
    source: str, model: nn.Module, limit: int | None = None, seed: int = 0, split: Any = "train"
) -> TensorImages:
    """Images of a source, decoded once."""
    workers = workers_for(next(model.parameters()).device)
    return held(open_images(source, model=model, limit=limit, seed=seed, split=split, workers=workers))


def held(images: ImageSource) -> TensorImages:
    """A source whose images are decoded once."""
    batches = list(images.batches(100))
    return tensor_images(torch.cat([pixels for pixels, _ in batches]), torch.cat([labels for _, labels in batches]))


class Kept(Images):
    """Images whose pictures are read once for all trainings that want the same ones."""

    known: ClassVar[dict[tuple[str, str], Canvases]] = {}

    @classmethod
    def of(cls, images: Images) -> Self:
        """The same images."""
        more: dict[str, Any] = {"classes": images.classes, "workers": images._workers, "mirrors": images.mirrors}
        return cls(images.name, images._items, images._transform, fingerprint=images.fingerprint, **more)

    def canvases(self, device: torch.device) -> Canvases:
        """Every picture on a canvas, to cut views from."""
        key = (self.fingerprint, str(device))
        if key not in self.known:
            self.known[key] = super().canvases(device)
        return self.known[key]


def training_images(source: str, model: nn.Module, limit: int | None = None, seed: int = 0) -> Kept:
    """Images to recover with: views are cut from pictures, as `patchslim finetune` does it, so tensors won't do."""
    workers = workers_for(next(model.parameters()).device)
    return Kept.of(open_images(source, model=model, limit=limit, seed=seed, workers=workers))


def scored(hits: Tensor, base: Tensor | None = None) -> dict[str, Any]:
    """Top-1 of images (images,) that were right or not, and what is lost against a base, with 95 % intervals."""
    low, high = wilson(int(hits.sum()), len(hits))
    score: dict[str, Any] = {"val_images": len(hits), "top1": float(hits.double().mean() * 100)}
    score |= {"top1_low": low, "top1_high": high}
    if base is None:
        return score
    apart = paired(base, hits)
    return score | {"lost": apart.difference, "lost_low": apart.low, "lost_high": apart.high}


def wilson(right: int, images: int) -> tuple[float, float]:
    """The 95 % interval of a share, in percent (Wilson 1927)."""
    share = right / images
    centre = share + Z**2 / (2 * images)
    half = Z * math.sqrt(share * (1 - share) / images + Z**2 / (4 * images**2))
    scale = 100 / (1 + Z**2 / images)
    return (centre - half) * scale, (centre + half) * scale


def say(words: str) -> None:
    """To whoever waits."""
    print(words, file=sys.stderr, flush=True)
