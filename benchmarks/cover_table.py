"""What becomes of static patches that leave, and which should stay: a table in docs/decisions.md.

    python benchmarks/cover_table.py --checkpoint deit_tiny_patch16_224.safetensors --data imagenet-train-1k-0000.tar \\
        --val imagenet-val-dev-0000.tar

One schedule of patches per block, so that rows differ in nothing else. Which patches stay is found on the first images
of a sample; they are judged on the last: the error of the feature the head reads, relative and squared; KL from the
host's output to the slim model's; how often the answer is the same. No labels. With --val also top-1, where patches
join others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import patchslim as ps
from harness import closeness
from modes_table import answers
from patchslim.data import open_images, tensor_images
from patchslim.hosts import Host, open_host
from patchslim.peers.hits import to_hex
from patchslim.plan import SlimPlan, build_plan
from patchslim.search.config import SPREADS
from patchslim.search.cover import Cover
from patchslim.search.features import Features
from patchslim.search.groups import likeness, static_groups
from trust_table import BATCH, opened, options, readout, written

COUNTS = [196, 196, 196, 153, 131, 111, 80, 65, 54, 37, 37, 0]  # what `patchslim slim --target-macs 0.55` finds


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = options(__doc__)
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS)
    parser.add_argument("--val", help="labelled images for top-1")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of random orders")
    return parser.parse_args()


def plans(host: Host, features: Features, args: argparse.Namespace) -> Iterator[tuple[dict[str, Any], SlimPlan]]:
    """(what a row is called, its plan)."""
    kept, into = static_groups(likeness(host, features), args.counts)
    name: dict[str, Any] = {"score": "likeness", "seed": 0, "removed": "merge", "groups": "fixed"}
    yield name, build_plan(host.info, removed="merge", kept=kept, into=into)
    for score in SPREADS:
        for seed in args.seeds if score == "random" else [0]:
            kept = Cover(host, features, score, seed).kept(args.counts)  # type: ignore[arg-type]  # one of them
            for removed, groups in (("drop", None), ("merge", "own")):
                name = {"score": score, "seed": seed, "removed": removed, "groups": groups}
                yield name, build_plan(host.info, removed=removed, kept=kept)


def main() -> None:
    """One row per plan."""
    args = parse()
    model, own, others = opened(args)
    host = open_host(model)
    features = Features(host, tensor_images(own), BATCH, 2**31)
    val = None if args.val is None else open_images(args.val, model=model)
    wanted, rows = readout(model, others), list[dict[str, Any]]()
    for name, plan in plans(host, features, args):
        found = closeness(model.get_classifier(), readout(ps.apply(model, plan), others), wanted)
        rows.append(name | {"macs_ratio": ps.count_macs(model, plan) / ps.count_macs(model)} | found)
        if val is not None and plan.groups == "own":
            right, _, _ = answers(ps.apply(model, plan), val)
            rows[-1] |= {"top1": float(right.double().mean() * 100), "right": to_hex(right), "images": len(right)}
        print(json.dumps({key: value for key, value in rows[-1].items() if key != "right"}), flush=True)
    written(args, model, rows)


if __name__ == "__main__":
    main()
