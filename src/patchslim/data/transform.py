"""From a picture to the tensor a model expects, with timm's own evaluation transform."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from patchslim.errors import DataError, first_words


@dataclass(frozen=True)
class Transform:
    """How pictures become tensors.

    `function` gives a (C, H, W) float32 tensor; `mode` is the picture mode it wants, RGB or L. `image_size`
    is (H, W), or None where the pictures keep their own size. `mean` and `std` have one value per channel.
    """

    function: Callable[[Image.Image], Tensor]
    mode: str
    image_size: tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: Image.Image) -> Tensor:
        """Turn an RGB picture into a (C, H, W) float32 tensor."""
        return self.function(image if image.mode == self.mode else image.convert(self.mode))

    def undo(self, image: Tensor) -> Tensor:
        """Turn a (C, H, W) tensor of this transform back into a (3, H, W) uint8 picture."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        pixels = ((image * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
        return pixels.expand(3, -1, -1).clone()


def transform_for(model: nn.Module | None) -> Transform:
    """Make the transform for a model; without one, pictures only become floats from 0 to 1."""
    if model is None:
        return Transform(to_tensor, "RGB", None, (0.0,) * 3, (1.0,) * 3)
    import timm.data  # late, here and below: it is slow to import

    config = data_config(model)
    function = timm.data.create_transform(**config, is_training=False)
    mode = "L" if len(config["mean"]) == 1 else "RGB"
    return Transform(function, mode, config["input_size"][-2:], config["mean"], config["std"])


@dataclass(frozen=True)
class Style:
    """How a training view differs from the picture. What is off by default belongs to supervised training."""

    crop_scale: float = 0.35  # smallest share of the picture that a crop shows
    flip: bool = True
    rand_augment: str | None = None  # timm's words for it
    erase: float = 0.0  # how often a rectangle is erased


def training_transform_for(model: nn.Module, style: Style) -> Transform:
    """Make the transform that gives random views of a picture, with timm's crop and the model's own normalisation."""
    import timm.data

    usual, config = transform_for(model), data_config(model)
    try:
        function = timm.data.create_transform(
            config["input_size"],
            is_training=True,
            scale=(style.crop_scale, 1.0),
            hflip=0.5 if style.flip else 0.0,
            color_jitter=0.0,
            auto_augment=style.rand_augment,
            interpolation=config["interpolation"],
            mean=config["mean"],
            std=config["std"],
            re_prob=style.erase,
            re_mode="pixel",
        )
    except Exception as problem:  # timm asserts, indexes and converts while it reads its words
        if not style.rand_augment:
            raise
        raise DataError(
            f"timm can't read the augmentation {style.rand_augment!r} ({first_words(problem)}); "
            "give words such as rand-m9-mstd0.5-inc1."
        ) from None
    return replace(usual, function=with_a_bit(function))


def with_a_bit(function: Any) -> Any:
    """The same transform, whose posterizing keeps at least 1 bit of a channel: timm's goes down to 0, which Pillow
    refuses from its version 13 on. The operations are this transform's own, so timm's lists stay as they are."""
    for part in function.transforms:
        for operations in getattr(part, "policy", [getattr(part, "ops", [])]):
            for operation in operations:
                if operation.name.startswith("Posterize"):
                    operation.level_fn = partial(_at_least_one, operation.level_fn)
    return function


def _at_least_one(level: Callable[..., tuple[int]], *about: Any) -> tuple[int]:
    (bits,) = level(*about)
    return (max(1, bits),)


def data_config(model: nn.Module) -> dict[str, Any]:
    """Resolve timm's data configuration, corrected to the model's real image size and channels."""
    import timm.data

    from patchslim.hosts import hf_data_settings
    from patchslim.hosts.hf_parts import hf_class

    settings = None if hf_class(model) is None else hf_data_settings(model)  # timm asks its own models itself
    config = dict(timm.data.resolve_model_data_config(model, pretrained_cfg=settings))
    embed: Any = getattr(model, "patch_embed", None)
    own = getattr(model, "in_chans", None) or getattr(getattr(embed, "proj", None), "in_channels", None)
    channels = int(config["input_size"][0] if own is None else own)
    if channels not in (1, 3):
        raise DataError(
            f"The model takes images of {channels} channels, but image files give 1 or 3; pass the images as a tensor."
        )
    # pretrained_cfg keeps the size of the training even when the model was made with another img_size.
    size = getattr(model if embed is None else embed, "img_size", None) or config["input_size"][-2:]
    config["input_size"] = (channels, *map(int, size))
    for name in ("mean", "std"):
        values = tuple(map(float, config[name]))  # their average where the channels are others
        config[name] = values if len(values) == channels else (sum(values) / len(values),) * channels
    return config


def to_tensor(image: Image.Image) -> Tensor:
    """Turn an RGB picture into a (3, H, W) float32 tensor from 0 to 1."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
