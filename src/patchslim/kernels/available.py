"""What all kernels share: Triton, where they can take over from tensor operations, and how a function that launches
them becomes an operator."""

import functools
import warnings
from collections.abc import Callable, Hashable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.library import custom_op

from patchslim.errors import PatchslimWarning

Launch = TypeVar("Launch", bound=Callable[..., Any])
TRITON = find_spec("triton") is not None
KERNELS = TRITON and torch.cuda.is_available()
# Without Triton kernels are written down and never launched.
triton: Any = import_module("triton") if TRITON else SimpleNamespace(jit=lambda kernel: kernel)
tl: Any = import_module("triton.language") if TRITON else SimpleNamespace(constexpr=lambda value: value)

OLDEST = 8  # the generation of GPUs that kernels are for
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # kernels add up in float32, so doubles are not for them
WIDEST_HEAD = 128  # channels of a head that fit where kernels keep them
MOST_KEYS = 1024  # tokens that one program looks at at once
MOST_TOKENS = 4224  # that kernels serve by tiles: 4,096 patches and whatever prefix there is
FEW_ROWS = 512  # tokens of a batch up to which a GPU has little to do: what counts is how many kernels follow another
LINE = 256  # bytes of a key, a multiple of which a program keeps to itself: in fp32 the widest heads have more


def in_inference(x: Tensor) -> bool:
    """Whether there are kernels and they may compute with a tensor: on a GPU, without gradients, not in an export."""
    # torch.compile of 2.11 answers for is_exporting whenever it traces; torch.export traces without it.
    exported = not torch.compiler.is_dynamo_compiling() and torch.compiler.is_exporting()
    return x.is_cuda and not torch.is_grad_enabled() and not exported and generation(x.device) >= OLDEST


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # else compilers put the question in a graph
def generation(device: torch.device) -> int:
    """A GPU's compute capability, less what follows the point; 0 without Triton."""
    return _looked_up(device)


@functools.cache
def _looked_up(device: torch.device) -> int:
    """The same, asked once for a GPU; says what it means where there are no kernels for it."""
    found = torch.cuda.get_device_capability(device)[0] if TRITON else 0
    if found < OLDEST:
        why = f"need a GPU of compute capability {OLDEST}.0" if TRITON else "need Triton, which is not installed"
        gpu = torch.cuda.get_device_name(device)
        text = f"patchslim's kernels {why}, so {gpu} runs torch's own operations; results are the same, but slower."
        warnings.warn(text, PatchslimWarning, stacklevel=2)
    return found


def kernels_for(k: Tensor) -> bool:
    """Whether kernels can read keys (B, H, n_in, d_h)."""
    fits = k.dtype in DTYPES and k.shape[3] <= WIDEST_HEAD and k.shape[2] <= MOST_TOKENS and k.stride(3) == 1
    return in_inference(k) and fits


def few_rows(y: Tensor) -> bool:
    """Whether tokens (B, n, d) are too few to keep a GPU busy."""
    return y.is_cuda and y.shape[0] * y.shape[1] <= FEW_ROWS


def exact(dtype: torch.dtype) -> str:
    """How products of a dtype are taken: fp32 is not rounded to TF32."""
    return "ieee" if dtype == torch.float32 else "tf32"


def _dense(arg: Any) -> Any:
    """A tensor with its last axis in one piece; anything else as it is."""
    return arg.contiguous() if isinstance(arg, Tensor) and arg.stride(-1) != 1 else arg


def operator(name: str, room: Callable[..., Any]) -> Callable[[Launch], Launch]:
    """Makes a function that launches kernels an operator of torch's, which compilers take as it is.

    Outside a compiler the function is just called: finding an operator takes as long as launching a kernel.
    `room` makes room for its results. The function gets tensors as kernels read them; the first says the device.
    """

    def made(launch: Launch) -> Launch:
        @wraps(launch)
        def launched(*args: Any) -> Any:
            with torch.cuda.device_of(args[0]):  # a launch goes to the current device
                return launch(*map(_dense, args))

        traced = custom_op(name, mutates_args=())(launched)
        traced.register_fake(room)

        @wraps(launch)
        def call(*args: Any) -> Any:
            return traced(*args) if torch.compiler.is_compiling() else launched(*args)

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
