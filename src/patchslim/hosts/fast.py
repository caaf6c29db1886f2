"""Whether custom kernels can take over from plain tensor operations."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

KERNELS = torch.cuda.is_available() and find_spec("triton") is not None

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # kernels add up in float32, so doubles are not for them
WIDEST_HEAD = 128  # channels of a head that fit where kernels keep them
MOST_KEYS = 1024  # tokens that one program looks at


def in_inference(x: Tensor) -> bool:
    """Whether kernels are there and may compute with a tensor: on a GPU, without gradients, not to be exported."""
    # torch.compile of 2.11 answers for is_exporting whenever it traces; torch.export traces without it.
    exported = not torch.compiler.is_dynamo_compiling() and torch.compiler.is_exporting()
    return KERNELS and x.is_cuda and not torch.is_grad_enabled() and not exported


def kernels_for(k: Tensor) -> bool:
    """Whether kernels can read keys (B, H, n_in, d_h)."""
    fits = k.dtype in DTYPES and k.shape[3] <= WIDEST_HEAD and k.shape[2] <= MOST_KEYS and k.stride(3) == 1
    return in_inference(k) and fits


def gelu_kernel_for(y: Tensor) -> bool:
    """Whether a linear layer and GELU can be one kernel for tokens (B, n, d): its GELU is exact to half precision."""
    return in_inference(y) and y.dtype in DTYPES[1:] and y.is_contiguous()
