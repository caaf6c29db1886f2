"""Where kernels can take over from tensor operations, and how a function that launches them becomes an operator."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.library import custom_op

Launch = TypeVar("Launch", bound=Callable[..., Any])
KERNELS = torch.cuda.is_available() and find_spec("triton") is not None

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # kernels add up in float32, so doubles are not for them
WIDEST_HEAD = 128  # channels of a head that fit where kernels keep them
MOST_KEYS = 1024  # tokens that one program looks at
FEW_ROWS = 512  # tokens of a batch up to which a GPU has little to do: what counts is how many kernels follow another
MANY_ROWS = 8192  # tokens of a batch from which a linear layer and GELU in one kernel are faster than two
HOPPER = 9  # the generation of GPUs on which they are


def in_inference(x: Tensor) -> bool:
    """Whether there are kernels and they may compute with a tensor: on a GPU, without gradients, not in an export."""
    # torch.compile of 2.11 answers for is_exporting whenever it traces; torch.export traces without it.
    exported = not torch.compiler.is_dynamo_compiling() and torch.compiler.is_exporting()
    return KERNELS and x.is_cuda and not torch.is_grad_enabled() and not exported


def kernels_for(k: Tensor) -> bool:
    """Whether kernels can read keys (B, H, n_in, d_h)."""
    fits = k.dtype in DTYPES and k.shape[3] <= WIDEST_HEAD and k.shape[2] <= MOST_KEYS and k.stride(3) == 1
    return in_inference(k) and fits


def few_rows(y: Tensor) -> bool:
    """Whether tokens (B, n, d) are too few to keep a GPU busy."""
    return y.is_cuda and y.shape[0] * y.shape[1] <= FEW_ROWS


def small_kernel_for(k: Tensor) -> bool:
    """Whether our kernel for attention is faster than the library's: for few rows, in a compiled model.

    Keys (B, H, n_in, d_h).
    """
    # The batch comes last: an exporter that leaves it free must not be asked how large it is.
    return torch.compiler.is_dynamo_compiling() and kernels_for(k) and k.shape[0] * k.shape[2] <= FEW_ROWS


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # or a compiler would put the question in its graph
def _generation(device: torch.device) -> int:
    """A GPU's compute capability, less what follows the point."""
    return torch.cuda.get_device_capability(device)[0]


def gelu_kernel_for(y: Tensor, weight: Tensor) -> bool:
    """Whether a linear layer and GELU should be one kernel for tokens (B, n, d): in a compiled model.

    The kernel's GELU is exact to half precision, and it reads rows that begin at 16 bytes.
    """
    if not torch.compiler.is_dynamo_compiling() or not in_inference(y) or _generation(y.device) != HOPPER:
        return False
    rows, aligned = y.shape[:-1].numel(), all(side % 8 == 0 for side in weight.shape)
    return rows >= MANY_ROWS and y.dtype == weight.dtype in DTYPES[1:] and y.is_contiguous() and aligned


def operator(name: str, room: Callable[..., Any]) -> Callable[[Launch], Launch]:
    """Makes a function that launches kernels an operator of torch's, which compilers take as it is.

    Outside a compiler the function is just called: finding an operator takes as long as launching a kernel.
    `room` makes room for its results.
    """

    def made(launch: Launch) -> Launch:
        traced = custom_op(name, mutates_args=())(launch)
        traced.register_fake(room)

        @wraps(launch)
        def call(*args: Any) -> Any:
            return traced(*args) if torch.compiler.is_compiling() else launch(*args)

        return cast(Launch, call)

    return made


_launched: set[Hashable] = set()


def worth_launching(kernel: Hashable) -> bool:
    """Whether to launch a kernel for what a library computes too: only while a CUDA graph is recorded.

    Replays launch it by themselves; Python takes longer for a launch than these kernels save. The very first launch
    compiles the kernel, so it can't be part of a recording.
    """
    first = kernel not in _launched
    if (KERNELS and torch.cuda.is_current_stream_capturing()) == first:
        return False
    _launched.add(kernel)
    return True
