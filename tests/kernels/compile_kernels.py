"""Compiles every kernel for GPUs that need not be there, and prints their names; run without Triton's interpreter."""

from typing import Any

import torch  # noqa: F401  # the kernels register themselves with it
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from patchslim.kernels import attention, merge, mlp
from patchslim.kernels import match_kernels as pairing

FLOATS = {"scale": "fp32", "eps": "fp32", "floor": "fp32"}
MOST_SHARED = 99 * 1024  # bytes that a program may keep to itself on the least of GPUs since 2020
BF16 = dict.fromkeys("qkvxz", "*bf16") | {"weight": "*fp32", "size": "*fp32", "place": "*i32"}
FP32 = dict.fromkeys("qkvxz", "*fp32") | {"weight": "*fp32", "size": "*fp32", "place": "*i32"}
FOUND = {"similarity": "*fp32", "nearest": "*i32", "weight": "*fp32", "grown": "*fp32"}
FOUND |= {"any_similarity": "*fp32", "any_nearest": "*i32", "order": "*i32"}
FOUND |= {"attended": "*fp32", "importance": "*fp32"}
NORM = {"out": "*bf16", "gain": "*bf16", "bias": "*bf16", "normed": "*bf16"}
HEAD = {"WIDTH": 64, "CHANNELS": 64, "EXACT": "tf32"}
WIDE = {"WIDTH": 128, "CHANNELS": 128, "EXACT": "ieee"}  # the widest head, in fp32
FEATURES = {"WIDTH": 32, "CHANNELS": 32}  # of a distance
Case = tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]


def attend(kinds: dict[str, str], head: dict[str, Any], tokens: int, sized: bool) -> Case:
    """Attention's kernel in the tile that it takes for a batch of so many tokens."""
    line = head["CHANNELS"] * (2 if kinds is BF16 else 4)
    rows, keys, stages = attention._tile(tokens, line)
    kinds = kinds | {"out": kinds["q"]} | ({} if sized else {"size": "constexpr"})
    constants = head | {"ROWS": rows, "KEYS": keys, "SIZED": sized} | ({} if sized else {"size": None})
    return attention._attend, kinds, constants, {"num_warps": 4, "num_stages": stages}


def nearest(kinds: dict[str, str], head: dict[str, Any], tokens: int, movers: int) -> Case:
    """Likewise the kernel that looks for pairs."""
    side = pairing.side_for(tokens, movers, head["CHANNELS"] * (2 if kinds is BF16 else 4))
    constants = head | {"SIDE": side, "ANY": head["CHANNELS"] == FEATURES["CHANNELS"]}
    return pairing.find_nearest, kinds, constants, {"num_warps": pairing.warps_for(side)}


def nearest_and_attend(kinds: dict[str, str], head: dict[str, Any], tokens: int, movers: int) -> Case:
    """That kernel with the class token's attention."""
    _, _, constants, launch = nearest(kinds, head, tokens, movers)
    del constants["ANY"]
    constants |= {"KEY_WIDTH": 64, "KEY_CHANNELS": 64, "KEYS": 256}
    return pairing.find_nearest_and_attend, kinds, constants, {"num_warps": max(4, launch["num_warps"])}


def lighter(kinds: dict[str, str], head: dict[str, Any], tokens: int, movers: int, classed: bool) -> Case:
    """The kernel that has the lighter half look for pairs."""
    _, _, constants, launch = nearest(kinds, head | FEATURES, tokens, movers)
    del constants["ANY"]
    constants |= {"PATCHES": 256, "OWN": pairing.OWN, "CLASSED": classed}
    constants |= {} if classed else {"attended": None, "importance": None}
    return (
        pairing.find_lighter,
        kinds,
        constants,
        pairing.EXACT_RANKS | {"num_warps": max(4, launch["num_warps"])},
    )


# Of every kernel: types of its pointers, constants as ViTs of 196 patches give them, and how it is launched.
CASES: list[Case] = [
    attend(BF16, HEAD, 197, False),
    attend(BF16, HEAD, 197, True),
    attend(BF16, HEAD, 50000, True),
    attend(FP32, WIDE, 197, True),
    attend(FP32, WIDE, 50000, True),
    (attention._class_rows, BF16 | {"out": "*fp32"}, {"WIDTH": 64, "CHANNELS": 64, "KEYS": 256}, {}),
    nearest(BF16, HEAD, 197, 98),
    nearest(BF16, HEAD, 50000, 98),
    nearest(BF16, HEAD, 50000, 50),
    nearest(FP32, WIDE, 50000, 98),
    nearest(BF16, HEAD | FEATURES, 50000, 196),
    lighter(BF16, HEAD, 197, 98, True),
    lighter(BF16, HEAD, 50000, 98, True),
    lighter(BF16, HEAD, 50000, 98, False),
    lighter(FP32, WIDE, 50000, 98, True),
    nearest_and_attend(BF16, HEAD | FEATURES, 197, 196),
    nearest_and_attend(BF16, HEAD | FEATURES, 50000, 196),
    nearest_and_attend(FP32, WIDE | FEATURES, 50000, 196),
    nearest_and_attend(BF16 | {"z": "*fp32"}, WIDE | FEATURES, 50000, 196),  # under autocast
    (
        pairing.rank_pairs,
        BF16,
        {"OWN": pairing.OWN, "MOVERS": 128, "ORDERED": True},
        pairing.EXACT_RANKS,
    ),
    (
        pairing.rank_pairs,
        BF16,
        {"OWN": pairing.OWN, "MOVERS": 128, "ORDERED": False, "order": None},
        pairing.EXACT_RANKS,
    ),
    (merge._merge_place, BF16 | NORM, {"WIDTH": 512, "PATCHES": 256, "NORM": True}, {"num_warps": 1}),
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
            # Where costs are computed twice, no sum may be rounded together with a product before it. Products of
            # matrices in fp32 are such sums, and are computed once.
            twice = not case[3].get("enable_fp_fusion", True) and case[2].get("EXACT") != "ieee"
            assert not twice or "FFMA" not in made.asm["sass"], case


if __name__ == "__main__":
    main()
