"""What the questions are asked of: models, images in memory, methods with settings."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from patchslim.cli.common import open_device, open_model, split_setting, workers_for
from patchslim.data import ImageSource, open_images, tensor_images
from patchslim.data.tensors import TensorImages
from patchslim.hosts import HostInfo, inspect
from patchslim.methods import make

Z = 1.959963984540054  # of a 95 % interval

MODEL = "deit_tiny_patch16_224"
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
    workers = min(15, max(workers_for(next(model.parameters()).device), 0))
    return held(open_images(source, model=model, limit=limit, seed=seed, split=split, workers=workers))


def held(images: ImageSource) -> TensorImages:
    """A source whose images are decoded once."""
    batches = list(images.batches(100))
    return tensor_images(torch.cat([pixels for pixels, _ in batches]), torch.cat([labels for _, labels in batches]))


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
