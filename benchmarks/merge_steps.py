"""Matched merge in many blocks or in a few, at the same MACs: how close to the host, and its top-1.

    python benchmarks/merge_steps.py --checkpoint deit_tiny_patch16_224.safetensors \
        --data imagenet-train-1k-0000.tar --val imagenet-val-dev-0000.tar --out results/merge_steps_deit_tiny.json

Closeness is on unlabelled training images; `--val` adds top-1. Schedules are those that benchmarks/gpu_speed.py times,
steps in other blocks, and two that were searched for.
"""

from __future__ import annotations

from typing import Any

import torch

import patchslim as ps
from drawn import MATCHED, THREE_STEPS, matched_plan
from harness import closeness, in_memory
from merge_variants import features, opened, options
from modes_table import answers
from patchslim.data import open_images
from patchslim.files import write_json
from patchslim.measure import device_name
from patchslim.peers.hits import to_hex

RATIO = 0.57
SHAPES = {
    "nine blocks, as timed": MATCHED,
    # on 64 images
    "nine blocks, searched for": (196, 190, 183, 168, 146, 116, 87, 72, 58, 42, 38),
    # --choosing-blocks 3, on 128 images
    "blocks 4, 6, 8, searched for": (196, 196, 196, 156, 156, 94, 94, 55, 55, 55, 55),
    "blocks 4 to 8": (196, 196, 196, 157, 125, 100, 80, 64, 64, 64, 64),
    "blocks 4, 7, 10, as timed": THREE_STEPS,
    "blocks 3, 6, 9": (196, 196, 139, 139, 139, 99, 99, 99, 70, 70, 70),
    "blocks 4, 6, 8": (196, 196, 196, 136, 136, 95, 95, 66, 66, 66, 66),
    "blocks 5, 7, 9": (196, 196, 196, 196, 120, 120, 73, 73, 45, 45, 45),
}


@torch.inference_mode()
def main() -> None:
    """Measure all schedules."""
    parser = options(__doc__, 500)
    parser.add_argument("--val")
    args = parser.parse_args()
    model, batches, wanted = opened(args)
    info = ps.inspect(model)
    val = None if args.val is None else in_memory(open_images(args.val, model=model))
    rows: list[dict[str, Any]] = []
    for name, shape in SHAPES.items():
        plan = matched_plan(info, RATIO, shape)
        slim: Any = ps.apply(model, plan)
        row: dict[str, Any] = {"merging in": name, "patches_per_block": list(plan.counts)}
        row |= {"macs_ratio": ps.count_macs(slim) / ps.count_macs(model)}
        row |= closeness(model.head, features(slim, batches), wanted)
        if val is not None:
            right, _, _ = answers(slim, val)
            row |= {"top1": float(right.double().mean() * 100), "right": to_hex(right)}
        rows.append(row)
        print({key: value for key, value in row.items() if key != "right"}, flush=True)
    if args.out is not None:
        about = {"images": len(wanted), "device": device_name(wanted.device), "torch": torch.__version__}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.out, about | {"rows": rows})


if __name__ == "__main__":
    main()
