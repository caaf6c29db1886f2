"""Compiles every kernel for GPUs that need not be there, and prints their names; run without Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch  # noqa: F401  # the kernels register themselves with it
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from patchslim.hosts import kernels as attention
from patchslim.hosts import mlp_kernel
from patchslim.slim import kernels as merging

FLOATS = {"scale": "fp32"}
HEAD = {"WIDTH": 64, "CHANNELS": 64, "EXACT": "tf32"}
# Of every kernel: types of its pointers, and constants as a ViT of width 384 and 196 patches gives them.
KERNELS: list[tuple[Any, dict[str, str], dict[str, Any]]] = [
    *(
        (
            mlp_kernel._linear_gelu,
            {"x": "*bf16", "weight": "*bf16", "bias": "*bf16", "out": "*bf16"},
            {"ROWS": side, "COLUMNS": side, "DEPTH": 64},
        )
        for side in (64, 128)
    ),
    (
        attention._attend,
        {"q": "*bf16", "k": "*bf16", "v": "*bf16", "size": "*fp32", "out": "*bf16"},
        HEAD | {"ROWS": 64, "KEYS": 32},
    ),
    (
        attention._class_rows,
        {"q": "*bf16", "k": "*bf16", "size": "*fp32", "out": "*fp32"},
        {"WIDTH": 64, "CHANNELS": 64, "KEYS": 256},
    ),
    (
        merging._nearest,
        {"k": "*bf16", "alike": "*fp32", "nearest": "*i32"},
        HEAD | {"MOVERS": merging.OWN, "HOSTS": 128},
    ),
    *(
        (
            merging._rank,
            {"alike": "*fp32", "nearest": "*i32", "offset": "*fp32", "place": "*i32"},
            {"OWN": merging.OWN, "MOVERS": 128, "BY_COST": by_cost},
        )
        for by_cost in (False, True)
    ),
    (
        merging._merge,
        {"x": "*bf16", "size": "*fp32", "weight": "*fp32", "place": "*i32", "out": "*bf16", "grown": "*fp32"},
        {"WIDTH": 512, "PATCHES": 256},
    ),
]


def main() -> None:
    """All kernels for two generations of GPUs."""
    for capability in (80, 90):
        for kernel, pointers, constants in KERNELS:
            kinds = dict.fromkeys(kernel.arg_names, "i32") | FLOATS | pointers | dict.fromkeys(constants, "constexpr")
            signature = {name: kinds[name] for name in kernel.arg_names}
            values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
            source = ASTSource(fn=kernel, signature=signature, constexprs=values)
            triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
            print(kernel.fn.__name__, capability)


if __name__ == "__main__":
    main()
