"""Matched merge in many blocks or in a few, at the same MACs: how close to the host, and its top-1.

    python benchmarks/merge_steps.py --checkpoint deit_tiny_patch16_224.safetensors \
        --data imagenet-train-1k-0000.tar --val imagenet-val-dev-0000.tar --out results/merge_steps_deit_tiny.json

Closeness is on unlabelled training images; `--val` adds top-1. Schedules are those that benchmarks/gpu_speed.py times,
steps in other blocks, and two that were searched for.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import patchslim as ps
from drawn import MATCHED, THREE_STEPS, matched_plan
from harness import closeness
from merge_variants import features
from modes_table import answers
from patchslim.cli.common import open_device, open_model
from patchslim.data import open_images
from patchslim.files import write_json
from patchslim.measure import device_name
from patchslim.peers.hits import to_hex

RATIO = 0.57
SHAPES = {
    "nine blocks, as timed": MATCHED,
    "nine blocks, searched for": (196, 190, 183, 168, 146, 116, 87, 72, 58, 42, 38),  # on 64 images
    "blocks 4, 6, 8, searched for": (
        196,
        196,
        196,
        156,
        156,
        94,
        94,
        55,
        55,
        55,
        55,
    ),  # --choosing-blocks 3, 128 images
    "blocks 4 to 8": (196, 196, 196, 157, 125, 100, 80, 64, 64, 64, 64),
    "blocks 4, 7, 10, as timed": THREE_STEPS,
    "blocks 3, 6, 9": (196, 196, 139, 139, 139, 99, 99, 99, 70, 70, 70),
    "blocks 4, 6, 8": (196, 196, 196, 136, 136, 95, 95, 66, 66, 66, 66),
    "blocks 5, 7, 9": (196, 196, 196, 196, 120, 120, 73, 73, 45, 45, 45),
}


@torch.inference_mode()
def main() -> None:
    """Measure all schedules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--val")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = open_device(args.device)
    model: Any = open_model("deit_tiny_patch16_224", args.checkpoint).to(device)
    info = ps.inspect(model)
    source = open_images(args.data, model=model, limit=args.images, seed=0)
    batches = [images.to(device) for images, _ in source.batches(50)]
    wanted = features(model, batches)
    table: dict[str, Any] = {"images": len(wanted), "device": device_name(device), "torch": torch.__version__}
    table["rows"] = []
    for name, shape in SHAPES.items():
        plan = matched_plan(info, RATIO, shape)
        slim: Any = ps.apply(model, plan)
        row: dict[str, Any] = {"merging in": name, "patches_per_block": list(plan.counts)}
        row |= {"macs_ratio": ps.count_macs(slim) / ps.count_macs(model)}
        row |= closeness(model.head, features(slim, batches), wanted)
        if args.val is not None:
            right, _, _ = answers(slim, open_images(args.val, model=model))
            row |= {"top1": float(right.double().mean() * 100), "right": to_hex(right)}
        table["rows"].append(row)
        print({key: value for key, value in row.items() if key != "right"}, flush=True)
        write_json(args.out, table)


if __name__ == "__main__":
    main()
