"""Weights from safetensors files, checked before they touch a model. Nothing is unpickled here."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from patchslim.errors import CheckpointError
from patchslim.files import replacing

PICKLE_STARTS = (b"PK\x03\x04", b"\x80")  # torch.save's zip, and a bare pickle


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; CheckpointError when it is something else."""
    if is_pickle(path):
        raise CheckpointError(
            f"{path} is a pickle, which can run code when it is read; convert it with "
            "safetensors.torch.save_file(state_dict, 'model.safetensors') and give that file."
        )
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}.") from None


def is_pickle(path: Path) -> bool:
    """Whether a file begins as what torch.save writes does; CheckpointError when there is none."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint at {path}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror or error}.") from None
    # A safetensors file starts with the length of its header, which may be any bytes, and then the header, JSON.
    return start.startswith(PICKLE_STARTS) and start[8:] != b"{"


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write a safetensors file whole or not at all; OSError when it can't be written."""
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str, partial: bool = False) -> None:
    """Raise CheckpointError unless names and shapes are the model's and every number is finite."""
    wrong = misfit(model, weights, partial)
    if wrong is not None:
        raise CheckpointError(
            f"{source} does not fit {type(model).__name__}: {wrong}; is it for another model or image size?"
        )
    own = model.state_dict()
    for name, tensor in weights.items():
        if own[name].is_floating_point() != tensor.is_floating_point():
            raise CheckpointError(f"{source} has {tensor.dtype} numbers in {name}; weights are floating-point numbers.")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise CheckpointError(f"{source} has NaN or infinite numbers in {name}; it can't be used.")


def misfit(model: nn.Module, weights: Mapping[str, Tensor], partial: bool = False) -> str | None:
    """What keeps weights from fitting a model by name and shape, in words; None when nothing does."""
    own = model.state_dict()
    missing = [] if partial else [name for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    if missing or unknown:
        kind, names = ("lacks", missing) if missing else ("has unknown", unknown)
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return f"it {kind} {', '.join(names[:2])}{more}"
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            return f"{name} has shape {tuple(tensor.shape)} where the model has {tuple(own[name].shape)}"
    return None


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Shapes by name."""
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def load_weights_(model: nn.Module, path: Path) -> None:
    """Load a whole checkpoint into the model, or leave it as it was and raise CheckpointError."""
    weights = read_weights(path)
    check_weights(model, weights, str(path))
    model.load_state_dict(weights)


def load_part_(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights of some parts of the model, or leave it as it was and raise CheckpointError."""
    check_weights(model, weights, "The tuned weights", partial=True)
    model.load_state_dict(dict(weights), strict=False)


def weights_fingerprint(model: nn.Module) -> str:
    """A short hash of names and numbers: two models have the same one only if their weights are the same."""
    return tensors_fingerprint(model.state_dict())


def tensors_fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A short hash of some weights."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
