"""Memory: how much a call takes, and what to do when there is not enough."""

import gc
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from patchslim.errors import PatchslimError

Found = TypeVar("Found")

# What torch and the libraries under it say where they have no error of their own for it.
SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def fitting(size: int, attempt: Callable[[int], Found], device: str) -> Found:
    """`attempt(size)`, or with half of the batch, and half again, while it runs out of memory."""
    while True:
        found = _tried(size, attempt)
        if found is not None:
            return found
        if size == 1:
            raise PatchslimError(
                f"Even a batch of one image does not fit in the memory of {device}; "
                "free some, choose another --device or a lower --dtype."
            )
        size //= 2


def _tried(size: int, attempt: Callable[[int], Found]) -> Found | None:
    """What the attempt gives; None, and all it held given back, when memory ran out."""
    try:
        return attempt(size)
    except Exception as error:
        if not out_of_memory(error):
            raise
    # Only here, past the handler, is the error gone, and with it the frames that hold tensors.
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA was never used
    return None


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that there is no memory left."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False


def taken_by(work: Callable[[], Found], device: torch.device) -> tuple[Found, int | None]:
    """What the work gives, and the bytes that it needs at its peak beyond what was there before; None where the device
    does not count them."""
    if device.type != "cuda":
        return work(), None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    found = work()
    torch.cuda.synchronize(device)
    return found, torch.cuda.max_memory_allocated(device) - before


def size_of(model: nn.Module, batch: Tensor) -> int:
    """Bytes of a model's weights and of a batch."""
    return sum(_bytes(tensor) for tensor in (*model.parameters(), *model.buffers(), batch))


def _bytes(tensor: Any) -> int:
    """Bytes of a tensor, also of one that is made of others, as quantised weights are."""
    if not is_traceable_wrapper_subclass(tensor):
        return int(tensor.nbytes)
    names, _ = tensor.__tensor_flatten__()
    return sum(_bytes(getattr(tensor, name)) for name in names)
