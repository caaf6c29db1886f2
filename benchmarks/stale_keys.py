"""Why `carry` fails: accuracy when patches stop being computed at one block and are carried, or dropped, from there.

    python benchmarks/stale_keys.py --checkpoint deit_tiny_patch16_224.safetensors \
        --val imagenet-val-dev-0000.tar --out results/stale_keys_deit_tiny.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import patchslim as ps
from patchslim.cli.common import open_device, open_model, workers_for
from patchslim.files import write_json
from patchslim.measure import device_name, evaluate
from patchslim.plan import make_plan
from patchslim.scores import uniform_scores


def main() -> None:
    """Measure one plan per first pruned block and policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--val", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--keep", type=int, default=150)
    parser.add_argument("--first", nargs="+", type=int, default=[11, 9, 6, 3, 2])
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = open_device(args.device)
    model = open_model(args.model, args.checkpoint).to(device)
    info = ps.inspect(model)
    val = ps.open_images(args.val, model=model, limit=args.limit, workers=workers_for(device))
    order = uniform_scores(info.grid).argsort(descending=True).tolist()
    table: dict[str, Any] = {
        "model": args.model,
        "images": len(val),
        "keep": args.keep,
        "device": device_name(device),
        "torch": torch.__version__,
        "base_top1": evaluate(model, val).top1,
        "rows": [],
    }
    for first in args.first:
        counts = [info.patches if block < first else args.keep for block in range(1, info.depth)]
        row: dict[str, Any] = {"first_pruned_block": first}
        for removed in ("drop", "carry"):
            plan = make_plan(info, [order[:count] for count in [*counts, 0]], removed)
            row[removed] = evaluate(ps.apply(model, plan), val).top1
        table["rows"].append(row)
        print(row, flush=True)
    write_json(args.out, table)


if __name__ == "__main__":
    main()
