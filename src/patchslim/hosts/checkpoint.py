"""A user's own checkpoint: safetensors, or what torch.save wrote, of which nothing but tensors is ever read."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from timm.models import clean_state_dict
from torch import Tensor, nn

from patchslim.errors import CheckpointError, first_words
from patchslim.hosts.variants import hint
from patchslim.hosts.weights import check_weights, is_pickle, misfit, read_weights

# What training scripts put weights under; the moving average, where there is one, is what was measured.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The weights in a file, out of a training script's wrapping; CheckpointError when they can't be read safely."""
    return _weights(path, _unpickled(path)) if is_pickle(path) else read_weights(path)


def put_checkpoint_(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Put a whole checkpoint into the model, or leave it as it was and raise CheckpointError.

    Where the weights are another variant's or another image size's, the message names it.
    """
    wrong = misfit(model, weights)
    if wrong is not None and (right := hint(model, weights)) is not None:
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
    while isinstance(found, Mapping) and (inner := [found[name] for name in WRAPPERS if _is_dict(found.get(name))]):
        found = inner[0]
    named = found if isinstance(found, Mapping) else {}
    tensors = {str(name): value.detach() for name, value in named.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(f"{path} holds no weights: there is no state dict in it.")
    return clean_state_dict(tensors)


def _is_dict(value: Any) -> bool:
    return isinstance(value, Mapping)
