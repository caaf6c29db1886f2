"""A user's own checkpoint: safetensors, or what torch.save wrote, of which nothing but tensors is ever read. Where it
is another model's, its shapes tell which."""

import argparse
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import timm
import torch
from timm.models import clean_state_dict
from torch import Tensor, nn

from patchslim.errors import CheckpointError, first_words
from patchslim.hosts.timm_vit import model_name
from patchslim.hosts.weights import check_weights, is_pickle, misfit, read_weights, shapes_of
from patchslim.models.stem_vit import REGISTERED

# What training scripts put weights under; the moving average, where there is one, is what was measured.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
# Width and depth of the models whose checkpoints are told apart.
USUAL = {
    f"{name.format(size)}_patch16_224": (width, 12)
    for name in ("deit_{}", "deit_{}_distilled", "vit_{}")
    for size, width in {"tiny": 192, "small": 384, "base": 768}.items()
}
KNOWN = {name: (settings["embed_dim"], settings["depth"]) for name, settings in REGISTERED.items()} | USUAL
OPEN = ("head.", "head_dist.", "aux_head.", "pos_embed")  # differ with classes and image size, not with the variant


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The weights in a file, out of a training script's wrapping; CheckpointError when they can't be read safely."""
    return _weights(path, _unpickled(path)) if is_pickle(path) else read_weights(path)


def put_checkpoint_(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Put a whole checkpoint into the model, or leave it as it was and raise CheckpointError, which names the variant
    or the image size that the weights are of."""
    wrong = misfit(model, weights)
    if wrong is not None and (right := _hint(model, weights)) is not None:
        raise CheckpointError(f"{source} does not fit: {wrong}; {right}.")
    check_weights(model, weights, source)
    model.load_state_dict(dict(weights))


def _unpickled(path: Path) -> Any:
    """What torch.save wrote, read by torch's unpickler of tensors, that calls no code out of the file."""
    try:
        # Scripts keep their options, a Namespace, beside the weights. What torch would warn of is an error or nothing.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        if found is None:
            raise CheckpointError(
                f"{path} is a pickle that can't be read as tensors alone, so it was refused."
            ) from None
        raise CheckpointError(
            f"{path} is a pickle with more than tensors in it ({found[1]}), which could run code when it is read, so "
            "it was refused; save the model's state_dict() alone, by torch.save or as safetensors, and give that file."
        ) from None
    except Exception as error:  # a damaged file can fail in any way
        raise CheckpointError(f"{path} is not a readable checkpoint: {first_words(error).split('. ')[0]}.") from None


def _weights(path: Path, found: Any) -> dict[str, Tensor]:
    """The tensors of a state dict, or of the one that a checkpoint wraps, without the prefixes of parallel training."""
    named = found if isinstance(found, Mapping) else {}
    while inner := [named[name] for name in WRAPPERS if isinstance(named.get(name), Mapping)]:
        named = inner[0]
    tensors = {str(name): value.detach() for name, value in named.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(f"{path} holds no weights: there is no state dict in it.")
    return clean_state_dict(tensors)


def _hint(model: nn.Module, weights: Mapping[str, Tensor]) -> str | None:
    """What to do about weights that don't fit, when they are those of a known variant or of another image size."""
    own, shapes, trunk = model_name(model), shapes_of(weights), _trunk(weights)
    blocks = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
    size = shapes.get("cls_token", (0,))[-1], len(blocks)
    likely = [name for name, known in KNOWN.items() if known == size]  # few, as each has to be built
    names = [*([own] if timm.is_model(own) else []), *likely]
    with torch.device("meta"):
        name = next((name for name in names if _trunk(timm.create_model(name).state_dict()) == trunk), None)
    if name is None:
        return None
    if name != own:
        return f"by its shapes it is a checkpoint of {name}, not of {own}"
    here, there = (positions.get("pos_embed") for positions in (shapes_of(model.state_dict()), shapes))
    side = None if there is None or len(there) != 3 or here == there else _side(model, there)
    return None if side is None else f"it is for images of {side}×{side} pixels (--img-size {side})"


def _trunk(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Shapes of what tells variants apart."""
    return {name: shape for name, shape in shapes_of(weights).items() if not name.startswith(OPEN)}


def _side(model: Any, positions: tuple[int, ...]) -> int | None:
    """The side of the square images that positions (1, p + N, d) are for."""
    stem = getattr(model, "stem", None) or getattr(model, "patch_embed", None)
    patches = positions[1] - (0 if getattr(model, "no_embed_class", False) else model.num_prefix_tokens)
    rows = math.isqrt(max(patches, 0))
    return rows * int(stem.patch_size[0]) if stem is not None and rows and rows**2 == patches else None
