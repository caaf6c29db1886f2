"""Weights from safetensors files, checked before they touch a model. Nothing is unpickled here."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from patchslim.errors import CheckpointError
from patchslim.files import opened, write_bytes

PICKLE_STARTS = (b"PK\x03\x04", b"\x80")  # torch.save's zip, and a bare pickle
# The numbers that weights may have, as safetensors names them.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
DTYPES |= {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
DTYPES |= {"BOOL": torch.bool}


class Slot(NamedTuple):
    """What a tensor is, less its numbers."""

    shape: tuple[int, ...]
    dtype: torch.dtype


Slots = Mapping[str, Slot]


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; CheckpointError when it is something else."""
    refuse_pickle(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}.") from None


def slots_in(path: Path) -> dict[str, Slot]:
    """What the tensors of a safetensors file are, by its header: no number is read."""
    refuse_pickle(path)
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
            kinds = {name: (tuple(own.get_shape()), str(own.get_dtype())) for name, own in found.items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}.") from None
    for name, (_, kind) in kinds.items():
        if kind not in DTYPES:
            raise CheckpointError(f"{path} has numbers of the kind {kind} in {name}, which no weights here have.")
    return {name: Slot(shape, DTYPES[kind]) for name, (shape, kind) in kinds.items()}


def slots_of(weights: Mapping[str, Tensor]) -> dict[str, Slot]:
    """The same of tensors in memory."""
    return {name: Slot(tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}


def refuse_pickle(path: Path) -> None:
    """Raise CheckpointError for a pickle, and where there is no file."""
    if is_pickle(path):
        raise CheckpointError(
            f"{path} is a pickle, which can run code when it is read; convert it with "
            "safetensors.torch.save_file(state_dict, 'model.safetensors') and give that file."
        )


def is_pickle(path: Path) -> bool:
    """Whether a file begins as what torch.save writes does; CheckpointError when there is none."""
    try:
        with opened(path) as file:
            start = file.read(9)
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint at {path}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror or error}.") from None
    # A safetensors file starts with the length of its header, which may be any bytes, and then the header, JSON.
    return start.startswith(PICKLE_STARTS) and start[8:] != b"{"


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write a safetensors file whole or not at all; OSError when it can't be written."""
    write_bytes(path, weights_bytes(weights))


def weights_bytes(weights: Mapping[str, Tensor]) -> bytes:
    """A safetensors file."""
    return save({name: _alone(tensor.detach().cpu().contiguous()) for name, tensor in weights.items()})


def _alone(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it is a part of a larger one: a file holds what it shows and no more."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str, partial: bool = False) -> None:
    """Raise CheckpointError unless names and shapes are the model's and every number is finite."""
    check_fit(model, weights, source, partial)
    own = model.state_dict()
    for name, tensor in weights.items():
        if own[name].is_floating_point() != tensor.is_floating_point():
            raise CheckpointError(f"{source} has {tensor.dtype} numbers in {name}; weights are floating-point numbers.")
    broken = not_finite(weights)
    if broken is not None:
        raise CheckpointError(f"{source} has NaN or infinite numbers in {broken}; it can't be used.")


def check_fit(model: nn.Module, weights: Mapping[str, Tensor] | Slots, source: str, partial: bool = False) -> None:
    """Raise CheckpointError unless names and shapes are the model's."""
    wrong = misfit(model, weights, partial)
    if wrong is not None:
        raise CheckpointError(
            f"{source} does not fit {type(model).__name__}: {wrong}; is it for another model or image size?"
        )


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """The first tensor with a NaN or an infinite number in it; None where all are finite."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def misfit(model: nn.Module, weights: Mapping[str, Tensor] | Slots, partial: bool = False) -> str | None:
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


def cast_(model: nn.Module, slots: Slots) -> nn.Module:
    """Give a model's tensors the precision that those of the same names have; returns the model."""
    kinds = {slot.dtype for slot in slots.values() if slot.dtype.is_floating_point}
    if len(kinds) == 1:
        return model.to(kinds.pop())  # also what is no part of its weights
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in slots and slots[name].dtype.is_floating_point and tensor.is_floating_point():
            tensor.data = tensor.data.to(slots[name].dtype)
    return model


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
