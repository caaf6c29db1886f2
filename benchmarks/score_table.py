"""The table of scores in docs/results.md: every score at every MAC ratio and policy, searched and measured alike.

    python benchmarks/score_table.py --checkpoint deit_tiny_patch16_224.safetensors \
        --data imagenet-train-1k-0000.tar --val imagenet-val-dev-0000.tar --out results/scores_deit_tiny.json

Each row is what `patchslim slim … --score S --target-macs R --removed P --tune-epochs T` followed by `patchslim eval`
gives; here the validation images are decoded once for all rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from typing import Any

from torch import nn

import patchslim as ps
from harness import head, in_memory, options
from patchslim.cli.common import open_device, open_model, workers_for
from patchslim.data import ImageSource, open_images
from patchslim.files import write_json
from patchslim.measure import evaluate


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = options(__doc__)
    parser.add_argument("--scores", nargs="+", default=["impact", "attention", "random", "radial", "uniform"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.6, 0.52])
    parser.add_argument("--tolerances", nargs="+", type=float, help="instead of ratios")
    parser.add_argument("--policies", nargs="+", default=["drop", "carry"])
    parser.add_argument("--tune-epochs", nargs="+", type=int, default=[0])
    parser.add_argument("--learning-rates", nargs="+", type=float, default=[ps.SearchConfig.learning_rate])
    return parser.parse_args()


def measure(model: nn.Module, images: ImageSource, val: ImageSource, config: ps.SearchConfig) -> dict[str, Any]:
    """One row: search, apply, evaluate."""
    start = time.monotonic()
    plan, tuned = ps.search(model, images, config)
    seconds = time.monotonic() - start
    found = evaluate(ps.apply(model, plan, tuned), val, 200)
    return {
        **{
            name: getattr(config, name)
            for name in ("score", "removed", "target_macs", "tolerance", "tune_epochs", "seed")
        },
        "learning_rate": config.learning_rate,
        "top1": found.top1,
        "top5": found.top5,
        "macs_ratio": plan.provenance["macs_ratio"],
        "patches_per_block": list(plan.counts),
        "mean_error": sum(plan.provenance["errors"].values()) / len(plan.provenance["errors"]),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Measure all rows, writing after each."""
    args = parse()
    device = open_device(args.device)
    model = open_model(args.model, args.checkpoint).to(device)
    workers = workers_for(device)
    val = in_memory(open_images(args.val, model=model, workers=workers))
    base = evaluate(model, val, 200)
    table: dict[str, Any] = {
        **head(args, device),
        "images": base.images,
        "base_top1": base.top1,
        "base_top5": base.top5,
        "rows": [],
    }
    print(f"base: {base.top1:.2f}", flush=True)
    name, values = ("tolerance", args.tolerances) if args.tolerances else ("target_macs", args.ratios)
    rows = itertools.product(args.seeds, args.tune_epochs, args.learning_rates, args.policies, values, args.scores)
    for seed, epochs, rate, removed, value, score in rows:
        images = open_images(args.data, model=model, limit=args.images, seed=seed, workers=workers)
        config = ps.SearchConfig(
            score=score, removed=removed, tune_epochs=epochs, learning_rate=rate, seed=seed, **{name: value}
        )
        row = measure(model, images, val, config)
        table["rows"].append(row)
        print(json.dumps(row), flush=True)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.out, table)


if __name__ == "__main__":
    main()
