"""Kernels by the size of their tiles, in microseconds: how the sizes in `hosts/kernels.py`, `hosts/mlp_kernel.py` and
`slim/pair_kernels.py` were found.

    python benchmarks/kernel_tiles.py --out results/kernel_tiles_h200_torch2.11_bf16.json
    python benchmarks/kernel_tiles.py --gelu --out results/kernel_gelu_h200_torch2.11_bf16.json

Calls are recorded as a CUDA graph and replayed, so that launching them does not count; the least of five replays does.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from paper_harness import command
from patchslim.cli.common import open_device
from patchslim.files import write_json
from patchslim.hosts import kernels, mlp_kernel
from patchslim.measure import device_name
from patchslim.slim import pair_programs
from patchslim.timing.running import replayed

HEADS, WIDTH = (12, 6, 3), 64
SCALE = WIDTH**-0.5
TOKENS = ((1, 111, 111), (1, 142, 197), (256, 111, 111), (256, 120, 160))  # images, queries, keys
# Sides of a tile, then warps and stages.
GELU = ((128, 128, 64, 4, 3), (128, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (128, 128, 128, 4, 2))
ATTEND_FEW = ((16, 32, 2, 3), (16, 64, 2, 3), (16, 64, 4, 3), (16, 128, 4, 2), (32, 64, 4, 3), (64, 32, 4, 3))
ATTEND = ((64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3), (128, 64, 4, 2), (128, 64, 8, 2))
NEAREST = ((16, 16, 2), (32, 32, 2), (32, 32, 4), (64, 64, 4), (64, 64, 8), (128, 128, 8))
Row = tuple[str, str, Callable[[], Any]]  # what, how, a call


def drawn(*shape: int) -> Tensor:
    """Noise."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def by_library(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer and GELU in two kernels."""
    return F.gelu(F.linear(x, weight, bias))


def linear_gelu(tile: tuple[int, ...], x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """The same in one."""
    high, broad, depth, warps, stages = tile
    mlp_kernel._linear_gelu[(triton.cdiv(len(x), high) * triton.cdiv(len(weight), broad),)](
        TensorDescriptor.from_tensor(x, [high, depth]),
        TensorDescriptor.from_tensor(weight, [broad, depth]), bias,
        TensorDescriptor.from_tensor(out, [high, broad]), len(x), *weight.shape,
        ROWS=high, COLUMNS=broad, DEPTH=depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def attend(tile: tuple[int, ...], q: Tensor, k: Tensor, v: Tensor, size: Tensor, out: Tensor) -> None:
    """Attention with sizes: (B, H, n, d_h), twice (B, H, n_in, d_h), (B, n_in) → (B, H, n, d_h)."""
    rows, keys, warps, stages = tile
    batch, heads, n, _ = q.shape
    kernels._attend[(batch * heads, triton.cdiv(n, rows))](
        q, k, v, size, out, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], size.stride(0), *out.stride()[:3],
        heads, n, k.shape[2], SCALE,
        WIDTH=WIDTH, ROWS=rows, KEYS=keys, CHANNELS=WIDTH, EXACT="tf32", SIZED=True, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def nearest(tile: tuple[int, ...], k: Tensor) -> tuple[Tensor, Tensor]:
    """Of every even patch and every part of the odd ones, how alike the nearest is and which: keys (B, H, 1 + t, d_h) →
    twice (B, parts, ⌈t/2⌉)."""
    side, _, warps = tile
    batch, heads, tokens, _ = k.shape
    movers, hosts = tokens // 2, (tokens - 1) // 2
    parts = triton.cdiv(hosts, side)
    alike = k.new_empty(batch, parts, movers, dtype=torch.float32)
    which = torch.empty_like(alike, dtype=torch.int32)
    pair_programs.find_nearest[(batch, triton.cdiv(movers, side) * parts)](
        k[:, :, 1:], alike, which, *k.stride()[:3], parts * movers, heads, movers, hosts, parts,
        WIDTH=WIDTH, SIDE=side, CHANNELS=WIDTH, ANY=False, EXACT="tf32", num_warps=warps,
    )  # fmt: skip
    return alike, which


def named(tile: tuple[int, ...], sides: int) -> str:
    """A tile for reading."""
    rest = [f"{count} {what}" for count, what in zip(tile[sides:], ("warps", "stages"), strict=False)]
    return ", ".join(["×".join(map(str, tile[:sides])), *rest])


def tiles() -> Iterator[Row]:
    """Every kernel in every tile, beside the library's where it has one."""
    for deep in (192, 384, 768):
        args = drawn(256 * 120, deep), drawn(4 * deep, deep), drawn(4 * deep)
        what = f"linear and GELU, width {deep}, {len(args[0])} rows"
        yield what, "library", partial(by_library, *args)
        out = drawn(len(args[0]), 4 * deep)
        yield from ((what, named(tile, 3), partial(linear_gelu, tile, *args, out)) for tile in GELU)
    for heads, (batch, n, n_in) in itertools.product(HEADS, TOKENS):
        q, k, v = (part.transpose(1, 2) for part in drawn(batch, n_in, 3, heads, WIDTH).unbind(2))
        q, size = q[:, :, :n], torch.ones(batch, n_in, device="cuda")
        what = f"attention, {heads} heads, {batch} images, {n} queries, {n_in} keys"
        yield what, "library, without sizes", partial(F.scaled_dot_product_attention, q, k, v, scale=SCALE)
        out = drawn(batch, n, heads, WIDTH).transpose(1, 2)
        for tile in ATTEND_FEW if batch == 1 else ATTEND:
            yield what, named(tile, 2), partial(attend, tile, q, k, v, size, out)
        what = f"pairs, {heads} heads, {batch} images, {n_in - 1} patches"
        yield from ((what, named(tile, 2), partial(nearest, tile, k)) for tile in NEAREST)


def gelus() -> Iterator[Row]:
    """The linear layer and GELU by the number of rows: two kernels of the library's against one in the tile chosen."""
    for deep, rows in itertools.product((192, 384, 768, 1024), (512, 1024, 2048, 4096, 8192, 16384, 32768)):
        args = drawn(rows, deep), drawn(4 * deep, deep), drawn(4 * deep)
        what = f"width {deep}, {rows} rows"
        yield what, "library", partial(by_library, *args)
        yield what, "one kernel", partial(linear_gelu, GELU[0], *args, drawn(rows, 4 * deep))


def microseconds(call: Callable[[], Any], times: int = 50) -> float:
    """Of one call, in a graph of many."""

    def many() -> None:
        for _ in range(times):
            call()

    replay = replayed(many, torch.device("cuda"))
    found: list[float] = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / times * 1000)
    return round(min(found), 2)


def main() -> None:
    """Time everything, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gelu", action="store_true", help="only the linear layer and GELU, by the number of rows")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = open_device("cuda")
    found: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for what, how, call in gelus() if args.gelu else tiles():
            found.setdefault(what, {})[how] = microseconds(call)
    write_json(args.out, {"device": device_name(device), "torch": torch.__version__, "microseconds": found})


if __name__ == "__main__":
    command(main)
