"""Compiles every kernel for GPUs that need not be there, and prints their names; run without Triton's interpreter."""

from typing import Any

import torch  # noqa: F401  # the kernels register themselves with it
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from patchslim.kernels import attention, merge, mlp
from patchslim.kernels import match_kernels as pairing

FLOATS = {"scale": "fp32", "eps": "fp32"}
MOST_SHARED = 99 * 1024  # bytes that a program may keep to itself on the least of GPUs since 2020
BF16 = dict.fromkeys([*"qkvxz", "rows", "log_size"], "*bf16")
FP32 = dict.fromkeys([*"qkvxz", "rows", "log_size"], "*fp32")
FOUND = {"weight": "*fp32", "size": "*fp32", "cost": "*fp32", "grown": "*fp32", "gone": "*i8", "gained": "*i64"}
FOUND |= dict.fromkeys(["parent", "root", "member", "begin"], "*i32")
NORM = {"out": "*bf16", "gain": "*bf16", "bias": "*bf16", "normed": "*bf16"}
HEAD = {"WIDTH": 64, "CHANNELS": 64, "EXACT": "tf32"}
WIDE = {"WIDTH": 128, "CHANNELS": 128, "EXACT": "ieee"}  # the widest head, in fp32
FEATURES = {"WIDTH": 31, "CHANNELS": 32, "EXACT": "tf32"}  # of a distance
KEYS = {"WIDTH": 192, "CHANNELS": 64, "EXACT": "ieee"}  # of all heads, in fp32
Case = tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]


def attend(kinds: dict[str, str], head: dict[str, Any], tokens: int, n: int, sized: bool) -> Case:
    """Attention's kernel in the tile that it takes for a batch of so many tokens."""
    line = head["CHANNELS"] * (2 if kinds is BF16 else 4)
    rows, keys, warps, stages = attention._tile(tokens, n, line)
    kinds = kinds | {"out": kinds["q"]} | ({} if sized else {"rows": "constexpr"})
    constants = head | {"ROWS": rows, "KEYS": keys, "SIZED": sized} | ({} if sized else {"rows": None})
    return attention._attend, kinds, constants, {"num_warps": warps, "num_stages": stages}


def choosing(kinds: dict[str, str], features: dict[str, Any], side: int, columns: int, sized: bool) -> list[Case]:
    """All kernels that find what goes and what it joins."""
    tile = {"SIDE": side, "COLUMNS": columns}
    looking = tile | features | {"SIZED": sized} | ({} if sized else {"size": None})
    rounds: list[Case] = [(pairing.find_heavier, kinds, looking | {"SECOND": second}, {}) for second in (False, True)]
    leaves: list[Case] = [(pairing.leave, kinds, tile | {"SECOND": second}, {}) for second in (False, True)]
    joins: list[Case] = [
        (pairing.join, kinds, looking | {"FIRST": first} | ({"gone": None} if first else {}), {})
        for first in (False, True)
    ]
    return [*rounds, *leaves, *joins, (merge._list_members, kinds, tile, {})]


def merging(kinds: dict[str, str], width: int, some: int) -> Case:
    """The averages."""
    return merge._merge_members, kinds | NORM, {"WIDTH": width, "SOME": some, "NORM": True}, {"num_warps": 1}


# Of every kernel: types of its pointers, constants as ViTs of 196 patches give them, and how it is launched.
CASES: list[Case] = [
    attend(BF16, HEAD, 197, 197, False),
    attend(BF16, HEAD, 197, 197, True),
    attend(BF16, HEAD, 50000, 98, True),
    attend(BF16, HEAD, 50000, 685, True),
    attend(FP32, WIDE, 197, 197, True),
    (attention._size_rows, BF16, {}, {"num_warps": 1}),
    (attention._class_rows, BF16 | {"out": "*fp32"}, {"WIDTH": 64, "CHANNELS": 64, "KEYS": 256}, {}),
    *choosing(BF16, FEATURES, pairing.SIDE, pairing.COLUMNS, True),
    *choosing(BF16, FEATURES, pairing.FEW, pairing.COLUMNS, False),
    *choosing(FP32, KEYS, pairing.SIDE, pairing.SIDE, False),
    merging(BF16, 256, merge.SOME),
    merging(BF16, 1024, merge.SOME // 2),
]
# On Hopper only, where more can be kept.
DESCRIBED = {"x": "tensordesc<bf16[128,64]>", "weight": "tensordesc<bf16[128,64]>", "bias": "*bf16"}
HOPPERS: list[Case] = [
    (
        mlp._linear_gelu,
        DESCRIBED | {"out": "tensordesc<bf16[128,128]>"},
        {"ROWS": 128, "COLUMNS": 128, "DEPTH": 64},
        {"num_warps": 4, "num_stages": 3},
    )
]


def compiled(case: Case, capability: int) -> Any:
    """Compile a kernel."""
    kernel, pointers, constants, launch = case
    kinds = dict.fromkeys(kernel.arg_names, "i32") | FLOATS | FOUND | pointers | dict.fromkeys(constants, "constexpr")
    signature = {name: kinds[name] for name in kernel.arg_names}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(signature) if name not in constants}
    # Pointers and strides as they mostly are; only then loads run ahead of the computation, and have to be kept.
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4} | launch)


def main() -> None:
    """All kernels for two generations of GPUs."""
    for capability, cases in ((80, CASES), (90, CASES + HOPPERS)):
        for case in cases:
            made = compiled(case, capability)
            shared = int(made.metadata.shared)  # bytes that a program keeps to itself
            print(case[0].fn.__name__, capability, shared)
            assert shared <= (MOST_SHARED if case in CASES else 227 * 1024), (case, shared)


if __name__ == "__main__":
    main()
