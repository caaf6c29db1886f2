"""Speed of a slim DeiT-S on the CPU against what its MACs promise, host and slim model in one run.

    python benchmarks/cpu_speed.py --out results/cpu_speed_deit_small.json

Random weights serve: speed does not depend on them. The plan comes from a search on noise at the asked ratio.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import timm
import torch

import patchslim as ps
from patchslim.files import write_json
from patchslim.measure import compare


def main() -> None:
    """Search, apply, time at each batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--ratio", type=float, default=0.57)
    parser.add_argument("--select", choices=("static", "matched"), default="static")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model(args.model).eval().to(args.device)
    info = ps.inspect(model)
    noise = torch.randn(8, info.channels, *info.image_size)
    settings = {"score": "radial", "tune_epochs": 0} if args.select == "static" else {"select": "matched"}
    plan, _ = ps.search(model, noise, ps.SearchConfig(target_macs=args.ratio, **settings))
    slim = ps.apply(model, plan)
    rows: list[dict[str, Any]] = []
    for batch_size in args.batch_sizes:
        batch = torch.randn(batch_size, info.channels, *info.image_size, device=args.device)
        row = compare(slim, model, batch, args.dtype, args.compile, args.seconds)
        rows.append(row)
        print(
            f"{args.model}, batch {batch_size}: {row['throughput']:.2f} images/s against "
            f"{row['baseline_throughput']:.2f}, {row['speedup']:.3f}× of {row['ideal_speedup']:.3f}×: "
            f"{row['share_of_ideal']:.1%} of ideal",
            flush=True,
        )
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        table = {
            "model": args.model,
            "ratio": args.ratio,
            "patches_per_block": list(plan.counts),
            "rows": rows,
        }
        write_json(args.out, table)


if __name__ == "__main__":
    main()
