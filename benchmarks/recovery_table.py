"""The tables and the figure of recovery in docs/results.md: every mode and MAC ratio, before and after `finetune`.

    python benchmarks/recovery_table.py --checkpoint deit_tiny_patch16_224.safetensors \
        --data imagenet-train-1k-0000.tar --train '{imagenet-train-1k-0000,natural-224-0000,natural-224-0001}.tar' \
        --val imagenet-val-dev-0000.tar --out results/recovery_deit_tiny.json

Each row is what `patchslim slim … --data DATA`, `patchslim finetune … --data TRAIN` and `patchslim eval` give; here
images are decoded once for all rows. `--set` overrides settings of the recovery,
`--val none` judges by held-out training images only, which is how settings were chosen.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from torch import nn

import patchslim as ps
from harness import Remembered, head, in_memory, options
from modes_table import MODES, answers
from patchslim.cli.common import open_device, open_model
from patchslim.data import ImageSource, open_images
from patchslim.files import write_json
from patchslim.peers.hits import to_hex
from patchslim.recover import recover

USUAL = ["static drop", "static merge", "matched merge", "predicted drop", "predicted merge"]


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = options(__doc__)
    parser.add_argument("--train", required=True, help="images to recover with")
    parser.add_argument("--modes", nargs="+", default=USUAL, choices=list(MODES))
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.7, 0.55, 0.45, 0.35])
    parser.add_argument("--rows", nargs="+", metavar="MODE@RATIO", help="instead of all modes at all ratios")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the recovery")
    parser.add_argument("--memory", type=Path, help="folder for what searches find out, shared by all ratios")
    parser.add_argument("--batch-size", type=int, default=128, help="of searches")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--seconds", type=float, help="begin no row after so many")
    return parser.parse_args()


def settings(words: list[str]) -> dict[str, Any]:
    """NAME=VALUE, values as JSON."""
    return {name: json.loads(value) for name, value in (word.split("=", 1) for word in words)}


def numbers(result: Any) -> dict[str, Any]:
    """What a recovery reports, in short."""
    report = result.report
    found = {"recovery_seconds": report["seconds"], "stopped": report["stopped"], "stages": report["stages"]}
    for when in ("before", "after"):
        found |= {f"held_out_{name}_{when}": report[when][name] for name in ("loss", "kl", "agreement")}
    return found


def scored(network: nn.Module, val: ImageSource, when: str) -> dict[str, Any]:
    """Top-1 and which images are right."""
    right, _, _ = answers(network, val)
    return {f"top1_{when}": float(right.double().mean() * 100), f"right_{when}": to_hex(right)}


def chosen(args: argparse.Namespace) -> list[tuple[str, float]]:
    """The rows to measure: (mode, MAC ratio)."""
    if args.rows is None:
        return [(mode, ratio) for ratio in args.ratios for mode in args.modes]
    return [(mode, float(ratio)) for mode, ratio in (word.rsplit("@", 1) for word in args.rows)]


def measured(
    model: nn.Module, images: ImageSource, train: Remembered, val: ImageSource | None, *settings: Any
) -> dict[str, Any]:
    """One row: search, measure, recover, measure again."""
    search, config, memory = settings
    start = time.monotonic()
    plan, weights = ps.search(model, images, search, checkpoint=memory)
    slim = ps.apply(model, plan, weights)
    row: dict[str, Any] = {
        "target_macs": search.target_macs,
        "seed": search.seed,
        "recovery_seed": config.seed,
        "macs_ratio": ps.count_macs(slim) / ps.count_macs(model),
        "patches_per_block": list(plan.counts),
        "drops": plan.drops,
        "error": plan.provenance["errors"].get("readout"),
        "search_seconds": round(time.monotonic() - start, 1),
    }
    result = recover(slim, model, train, config)
    row |= numbers(result)
    return row if val is None else row | scored(slim, val, "before") | scored(result.model, val, "after")


def main() -> None:
    """Measure all rows, writing after each."""
    args, begin = parse(), time.monotonic()
    device, seed = open_device(args.device), args.seeds[0]
    model = open_model(args.model, args.checkpoint).to(device)
    val = None if args.val == "none" else in_memory(open_images(args.val, model=model, workers=args.workers))
    images = in_memory(open_images(args.data, model=model, limit=args.images, seed=seed, workers=args.workers))
    train = Remembered.of(open_images(args.train, model=model, workers=args.workers))
    config = ps.RecoverConfig(**({"seed": seed} | settings(args.set)))
    table: dict[str, Any] = head(args, device) | {"recovery": config.as_dict(), "train_images": len(train), "rows": []}
    if val is not None:
        right, _, _ = answers(model, val)
        table |= {"images": len(right), "base_top1": float(right.double().mean() * 100), "base_right": to_hex(right)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for mode, ratio in chosen(args):
        if args.seconds is not None and time.monotonic() - begin > args.seconds:
            break
        search = ps.SearchConfig(target_macs=ratio, seed=seed, batch_size=args.batch_size, **MODES[mode])
        memory = None if args.memory is None else args.memory / f"{mode} {seed}"
        row = {"mode": mode} | measured(model, images, train, val, search, config, memory)
        table["rows"].append(row)
        print(json.dumps({name: value for name, value in row.items() if "right" not in name}), flush=True)
        write_json(args.out, table)


if __name__ == "__main__":
    main()
