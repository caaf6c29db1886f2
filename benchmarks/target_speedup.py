"""Speed-ups asked for, predicted and measured: `--target-speedup`, then `bench`, on the device at hand.

    python benchmarks/target_speedup.py --out results/target_speedup_deit_small.json

Random weights and noise serve where none are given: time does not depend on them, only which patches leave does.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

import patchslim as ps
from patchslim.data import ImageSource, as_source
from patchslim.files import write_json
from patchslim.hosts.weights import load_weights_
from patchslim.measure import BenchConfig, bench
from patchslim.search.run import search

WAYS: dict[str, dict[str, Any]] = {
    "static drop": {"removed": "drop"},
    "static merge": {"removed": "merge", "groups": "fixed"},
    "static merge, own groups": {},
    "matched merge": {"select": "matched"},
    "predicted drop": {"select": "predicted", "removed": "drop"},
}
TOLD = ("asked", "predicted", "from_blocks", "spread", "grain", "batch_size", "dtype", "mode", "host_mode")
MEASURED = ("speedup", "speedup_same_embedding", "ideal_speedup", "throughput", "baseline_throughput")


def main() -> None:
    """A row for every way of choosing and speed-up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--data", help="images to search on [noise]")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["static drop", "matched merge"])
    parser.add_argument("--speedups", nargs="+", type=float, default=[1.6])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--speed-mode", default="auto", help="of search and bench")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="of bench, for each model in each mode")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model(args.model).eval()
    if args.checkpoint is not None:
        load_weights_(model, args.checkpoint)
    source = images_for(model, args)
    rows = [row(model.to(args.device), source, way, speedup, args) for way in args.ways for speedup in args.speedups]
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        about = {name: rows[0][name] for name in ("device", "torch", "threads")}
        write_json(args.out, {"model": args.model} | about | {"rows": rows})


def images_for(model: nn.Module, args: argparse.Namespace) -> ImageSource:
    """Real images where there are some."""
    if args.data is not None:
        return ps.open_images(args.data, model=model, limit=args.images, seed=0)
    info = ps.inspect(model)
    return as_source(torch.randn(args.images, info.channels, *info.image_size))


def row(model: nn.Module, source: ImageSource, way: str, speedup: float, args: argparse.Namespace) -> dict[str, Any]:
    """Search, then time: what was asked, predicted and measured."""
    settings: dict[str, Any] = {"speed_batch_size": args.batch_size, "speed_dtype": args.dtype}
    settings["speed_mode"] = args.speed_mode
    plan, weights = search(model, source, ps.SearchConfig(target_speedup=speedup, **settings, **WAYS[way]))
    slim = ps.apply(model, plan, weights)
    found = bench(slim, model, BenchConfig([args.batch_size], [args.dtype], [args.speed_mode], seconds=args.seconds))
    told = plan.provenance["speed"]
    print(
        f"{args.model}, {way}: asked {speedup:g}×, predicted {told['predicted']:.3f}×, "
        f"measured {found['speedup']:.3f}× ({found['speedup'] / speedup - 1:+.1%})",
        flush=True,
    )
    about = {"way": way, "patches_per_block": list(plan.counts), "macs_ratio": plan.provenance["macs_ratio"]}
    numbers = {name: told[name] for name in TOLD} | {f"measured_{name}": found[name] for name in MEASURED}
    return about | numbers | {name: found[name] for name in ("device", "torch", "threads")}


if __name__ == "__main__":
    main()
