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
BF16 = dict.fromkeys("qkvxz", "*bf16") | {"matrix": "*bf16", "bias": "*bf16"}
FP32 = dict.fromkeys("qkvxz", "*fp32") | {"matrix": "*fp32", "bias": "*fp32"}
FOUND = {"weight": "*fp32", "size": "*fp32", "cost": "*fp32", "grown": "*fp32"}
FOUND |= {"gone": "*i8", "parent": "*i32", "to": "*i32", "place": "*i32"}
NORM = {"out": "*bf16", "gain": "*bf16", "bias": "*bf16", "normed": "*bf16"}
HEAD = {"WIDTH": 64, "CHANNELS": 64, "EXACT": "tf32"}
WIDE = {"WIDTH": 128, "CHANNELS": 128, "EXACT": "ieee"}  # the widest head, in fp32
FEATURES = {"WIDTH": 31, "CHANNELS": 32}  # of a distance
KEYS = {"WIDTH": 192, "CHANNELS": 64}  # of all heads
Case = tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]


def attend(kinds: dict[str, str], head: dict[str, Any], tokens: int, sized: bool) -> Case:
    """Attention's kernel in the tile that it takes for a batch of so many tokens."""
    line = head["CHANNELS"] * (2 if kinds is BF16 else 4)
    rows, keys, stages = attention._tile(tokens, line)
    kinds = kinds | {"out": kinds["q"]} | ({} if sized else {"size": "constexpr"})
    constants = head | {"ROWS": rows, "KEYS": keys, "SIZED": sized} | ({} if sized else {"size": None})
    return attention._attend, kinds, constants, {"num_warps": 4, "num_stages": stages}


def alone(kinds: dict[str, str], features: dict[str, Any], first: bool, fused: bool, sized: bool) -> Case:
    """The kernel that does all of an image."""
    gone = ([] if fused else ["x", "matrix", "bias"]) + ([] if sized else ["size"])
    constants = features | {"OUT": 32, "PATCHES": 256, "SIDE": pairing.SIDE, "EXACT": how(kinds)}
    constants |= {"SIZED": sized, "FIRST": first, "FUSED": fused} | dict.fromkeys(gone)
    return pairing.choose_alone, kinds, constants, {"num_warps": 8}


def phases(kinds: dict[str, str], features: dict[str, Any], side: int, sized: bool) -> list[Case]:
    """Those of many patches."""
    constants = features | {"SIDE": side, "COLUMNS": pairing.SIDE, "EXACT": how(kinds), "SIZED": sized}
    constants |= {} if sized else {"size": None}
    rounds = [(pairing.find_heavier, kinds, constants | {"SECOND": second}, {}) for second in (False, True)]
    joins = [(pairing.join, kinds, constants | {"FIRST": first}, {}) for first in (False, True)]
    return [*rounds, *joins]


def leaving(patches: int, second: bool) -> Case:
    """The count of those that go."""
    bits = 4 if patches <= pairing.MANY else 2
    return pairing.leave, BF16, {"PATCHES": patches, "SECOND": second, "BITS": bits}, {"num_warps": 8}


def how(kinds: dict[str, str]) -> str:
    """How products are taken."""
    return "ieee" if kinds["z"] == "*fp32" else "tf32"


def merging(kinds: dict[str, str], width: int, patches: int) -> Case:
    """The averages."""
    constants = {"WIDTH": width, "PATCHES": patches, "SOME": merge.SOME, "NORM": True}
    return merge._merge_place, kinds | NORM, constants, {"num_warps": merge.warps_for(width, patches)}


# Of every kernel: types of its pointers, constants as ViTs of 196 patches give them, and how it is launched.
CASES: list[Case] = [
    attend(BF16, HEAD, 197, False),
    attend(BF16, HEAD, 197, True),
    attend(BF16, HEAD, 50000, True),
    attend(FP32, WIDE, 197, True),
    attend(FP32, WIDE, 50000, True),
    (attention._class_rows, BF16 | {"out": "*fp32"}, {"WIDTH": 64, "CHANNELS": 64, "KEYS": 256}, {}),
    *(alone(BF16, FEATURES, first, fused, True) for first in (False, True) for fused in (False, True)),
    alone(BF16, FEATURES, False, True, False),
    alone(FP32, FEATURES, False, True, True),
    *phases(BF16, FEATURES, pairing.SIDE, True),
    *phases(BF16, FEATURES, pairing.FEW, False),
    *phases(FP32, KEYS, pairing.SIDE, True),
    leaving(512, False),
    leaving(4096, True),
    merging(BF16, 256, 256),
    merging(BF16, 1024, 4096),
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
