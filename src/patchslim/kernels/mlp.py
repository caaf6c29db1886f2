"""The first half of an MLP, a linear layer and GELU in one kernel: what lies between them is the largest tensor of a
block, and on a GPU taking it through memory twice costs as much as the layer itself."""

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.kernels.available import DTYPES, generation, in_inference, operator, tl, triton, worth_launching

MANY_ROWS = 8192  # tokens of a batch from which one kernel is faster than two
HOPPER = 9  # the generation of GPUs on which it is
GROUP = tl.constexpr(8)  # tiles of rows that share weights in the cache


@triton.jit
def _gelu(x):
    """x Φ(x), with the tail of Φ by Abramowitz and Stegun 7.1.26: 2e-7 off at most, far less than half precision."""
    size = tl.abs(x)
    t = 1.0 / (1.0 + 0.23164189 * size)  # p / √2
    poly = t * (0.127414796 + t * (-0.142248368 + t * (0.710706870 + t * (-0.726576013 + t * 0.530702714))))
    tail = poly * tl.exp2(-0.7213475204 * size * size)  # Φ(-|x|); exp(-x² / 2)
    return tl.where(x < 0, x * tail, x - x * tail)


@triton.jit
def _linear_gelu(
    x, weight, bias, out, rows, wide, deep, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """One tile of the result; tensors come as descriptors, whose loads past an edge are zero and stores nothing."""
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(wide, COLUMNS)
    group = tl.program_id(0) // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    row, column = (group * GROUP + within % height) * ROWS, (within // height) * COLUMNS
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, deep, DEPTH):
        total = tl.dot(x.load([row, begin]), weight.load([column, begin]).T, total)
    at = column + tl.arange(0, COLUMNS)
    total += tl.load(bias + at, mask=at < wide, other=0.0).to(tl.float32)[None, :]
    out.store([row, column], _gelu(total).to(out.dtype))


def _half(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Room for the result."""
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@operator("patchslim::linear_gelu", _half)
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x Wᵀ + b): (…, d), (h, d), (h) → (…, h), in half precision; rows of all of them begin at 16 bytes."""
    wide, deep = weight.shape
    rows = x.shape[:-1].numel()
    if not worth_launching(("linear_gelu", x.device, x.dtype, rows, wide, deep)):
        return F.gelu(F.linear(x, weight, bias))
    from triton.tools.tensor_descriptor import TensorDescriptor

    out = _half(x, weight, bias)
    high, broad, depth = 128, 128, 64  # the fastest on an H200 of 8 shapes, at widths 192, 384 and 768
    _linear_gelu[(triton.cdiv(rows, high) * triton.cdiv(wide, broad),)](
        TensorDescriptor.from_tensor(x.reshape(rows, deep), [high, depth]),
        TensorDescriptor.from_tensor(weight, [broad, depth]), bias,
        TensorDescriptor.from_tensor(out.view(rows, wide), [high, broad]), rows, wide, deep,
        ROWS=high, COLUMNS=broad, DEPTH=depth, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def gelu_kernel_for(y: Tensor, weight: Tensor) -> bool:
    """Whether `linear_gelu` should be one kernel for tokens (B, n, d): in a compiled model.

    The kernel's GELU is exact to half precision, and it reads rows that begin at 16 bytes.
    """
    if not torch.compiler.is_dynamo_compiling() or not in_inference(y) or generation(y.device) != HOPPER:
        return False
    rows, aligned = y.shape[:-1].numel(), all(side % 8 == 0 for side in weight.shape)
    return rows >= MANY_ROWS and y.dtype == weight.dtype in DTYPES[1:] and y.is_contiguous() and aligned
