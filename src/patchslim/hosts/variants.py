"""Which model a checkpoint is of, by the names and shapes of its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import timm
import torch
from torch import Tensor, nn

from patchslim.hosts.timm_vit import model_name
from patchslim.models.register import REGISTERED

WIDTHS = {"tiny": 192, "small": 384, "base": 768}
USUAL = {
    f"{name.format(size)}_patch16_224": (width, 12)
    for name in ("deit_{}", "deit_{}_distilled", "vit_{}")
    for size, width in WIDTHS.items()
}
OWN = {name: (settings["embed_dim"], settings["depth"]) for name, settings in REGISTERED.items()}
OPEN = ("head.", "head_dist.", "aux_head.", "pos_embed")  # differ with classes and image size, not with the variant

Shapes = dict[str, tuple[int, ...]]


def hint(model: nn.Module, weights: Mapping[str, Tensor]) -> str | None:
    """What to do about weights that don't fit, when they are those of a known variant or of another image size."""
    own, shapes = model_name(model), _shapes(weights)
    size = _width_and_depth(shapes)
    likely = [name for name, known in (OWN | USUAL).items() if known == size]  # few, as each has to be built
    names = [*([own] if timm.is_model(own) else []), *likely]
    name = next((name for name in names if _trunk(_of(name)) == _trunk(shapes)), None)
    if name is None:
        return None
    if name != own:
        return f"by its shapes it is a checkpoint of {name}, not of {own}"
    here, there = (positions.get("pos_embed") for positions in (_shapes(model.state_dict()), shapes))
    side = None if there is None or here == there else _side(model, there)
    return None if side is None else f"it is for images of {side}×{side} pixels (--img-size {side})"


def _width_and_depth(shapes: Shapes) -> tuple[int, int]:
    blocks = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
    return shapes.get("cls_token", (0,))[-1], len(blocks)


def _of(name: str) -> Shapes:
    with torch.device("meta"):
        return _shapes(timm.create_model(name).state_dict())


def _shapes(weights: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def _trunk(shapes: Shapes) -> Shapes:
    """What tells variants apart."""
    return {name: shape for name, shape in shapes.items() if not name.startswith(OPEN)}


def _side(model: Any, positions: tuple[int, ...]) -> int | None:
    """The side of the square images that positions (1, p + N, d) are for."""
    stem = getattr(model, "stem", None) or getattr(model, "patch_embed", None)
    patches = positions[1] - (0 if getattr(model, "no_embed_class", False) else model.num_prefix_tokens)
    rows = math.isqrt(max(patches, 0))
    return rows * int(stem.patch_size[0]) if stem is not None and rows and rows**2 == patches else None
