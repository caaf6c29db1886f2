"""Plain, slim, quantised, both: top-1 and throughput of a run and its host, with layers in INT8 or float8 by torchao.

    python benchmarks/quantised_table.py RUN --val VAL --ways float8 int8 --dtype bfloat16 --batch-sizes 256 \
        --device cuda --out results/quantised_deit_tiny_h200_bf16.json

The host has the slim model's patch embedding. All four are timed in turns, each told by its best mode, and answer the
same validation images; points are against the plain host.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import patchslim as ps
from harness import in_memory
from patchslim.data import ImageSource
from patchslim.files import write_json
from patchslim.hosts import with_matmul_embed
from patchslim.measure import DTYPES, BenchConfig, bench, device_name, paired
from patchslim.quantise import WAYS, quantised
from patchslim.slim import load, load_host

ANSWERING = 100  # images at a time


def main() -> None:
    """Measure accuracy, then speed."""
    args = options()
    device, dtype = torch.device(args.device), DTYPES[args.dtype]
    slim, host = load(args.run).to(device), load_host(args.run).to(device)
    val = in_memory(ps.open_images(args.val, model=slim, limit=args.limit))
    rows = accuracy({"plain": with_matmul_embed(host), "slim": slim}, args.ways, val, device, dtype)
    speed = []
    for way in args.ways:
        config = BenchConfig(args.batch_sizes, [args.dtype], args.modes, args.seconds, quantise=way)
        speed += [row | {"quantised_to": way} for row in bench(slim, host, config)["rows"]]
    table = {
        "model": slim.host_info.name,
        "device": device_name(device),
        "torch": torch.__version__,
        "torchao": __import__("torchao").__version__,
        "dtype": args.dtype,
        "macs_ratio": ps.count_macs(slim) / ps.count_macs(host),
        "patches_per_block": list(slim.plan.counts),
        "validation_images": len(val),
        "accuracy": rows,
        "rows": speed,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, table)
    for row in speed:
        print(sentence(row), flush=True)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--val", required=True)
    parser.add_argument("--limit", type=int, help="validation images; all by default")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["int8"])
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[256])
    parser.add_argument("--modes", nargs="+", default=["auto"])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each model in each mode")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def accuracy(
    models: dict[str, nn.Module], ways: list[str], val: ImageSource, device: torch.device, dtype: torch.dtype
) -> list[dict[str, Any]]:
    """A row for each model and each quantisation of it, against the first one as it is."""
    example = next(images for images, _ in val.batches(ANSWERING)).to(device, dtype)
    base, rows = None, []
    for name, model in models.items():
        model = model.to(dtype).eval()
        for way in (None, *ways):
            found = hits(model if way is None else quantised(model, way, example), val, device, dtype)
            base = found if base is None else base
            difference = paired(found, base)
            row = {"model": name, "quantised_to": way, "top1": float(found.double().mean() * 100)}
            rows.append(row | {"points": difference.difference, "interval": [difference.low, difference.high]})
            print(rows[-1], flush=True)
    return rows


@torch.inference_mode()
def hits(model: nn.Module, val: ImageSource, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Which images get the right answer: (images,)."""
    batches = val.batches(ANSWERING)
    return torch.cat([model(images.to(device, dtype)).argmax(dim=1).cpu() == labels for images, labels in batches])


def sentence(row: dict[str, Any]) -> str:
    """A row for reading."""
    plain, slim, coarse, both = (
        row[f"{name}throughput"] for name in ("baseline_same_embedding_", "", "baseline_quantised_", "quantised_")
    )
    return (
        f"{row['quantised_to']}, batch {row['batch_size']}: images/s plain {plain:.0f}, slim {slim:.0f}, "
        f"quantised {coarse:.0f}, both {both:.0f} ({both / slim:.2f}× of slim)"
    )


if __name__ == "__main__":
    main()
