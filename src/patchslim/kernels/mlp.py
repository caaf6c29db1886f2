"""The first half of an MLP."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from patchslim.kernels.available import KERNELS, gelu_kernel_for

if KERNELS:
    from patchslim.kernels import mlp_triton


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x Wᵀ + b), one kernel where `gelu_kernel_for` says so: (…, d), (h, d), (h) → (…, h)."""
    if gelu_kernel_for(x, weight):
        hidden: Tensor = mlp_triton.linear_gelu(x, weight, bias)
        return hidden
    return F.gelu(F.linear(x, weight, bias))
