"""What a perfect G would be worth: every image drops or merges by its own exact scores. The table in docs/decisions.md.

    python benchmarks/known_scores.py --checkpoint deit_tiny_patch16_224.safetensors --data imagenet-train-1k-0000.tar

One schedule, unlabelled images; nothing is learnt. The error is that of the feature the head reads, relative and
squared; KL is from the host's output to the slim model's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness import closeness
from patchslim.cli.common import open_device, open_model
from patchslim.data import open_images, tensor_images
from patchslim.files import write_json
from patchslim.hosts import Host, open_host
from patchslim.measure import device_name
from patchslim.plan import PredictorSpec, Removed, build_plan
from patchslim.search.exact import exact_scores
from patchslim.search.features import Features
from patchslim.slim.assemble import slim_blocks

COUNTS = (196, 178, 178, 160, 140, 110, 90, 65, 55, 45, 45, 0)
BATCH = 32


class Known(nn.Module):
    """A G that looks up what it should say."""

    def __init__(self, scores: Tensor) -> None:
        """scores (B, N): log s of the images at hand."""
        super().__init__()
        self.scores = scores

    def forward(self, y: Tensor, place: Tensor) -> Tensor:
        """place (B, n) → log s (B, n)."""
        return self.scores.gather(1, place)


@torch.no_grad()
def readout(host: Host, features: Features, scores: Tensor, removed: Removed) -> Tensor:
    """What the head reads when images choose by these scores (images, depth, N): (images, d)."""
    # The paper's kind of G is the one that is told where patches sit.
    spec = PredictorSpec(kind="pool", weights="")
    fields: dict[str, Any] = {"select": "predicted", "removed": removed, "predictor": spec}
    plan = build_plan(host.info, **fields, patches_per_block=list(COUNTS))
    found, done = [], 0
    features.focus((0, host.info.depth))
    for (x,) in features.batches(0):
        own = scores[done : done + len(x)].to(x.device)
        done += len(x)
        state: Any = x
        for block in slim_blocks(host, plan, {layer: Known(own[:, layer - 1]) for layer in plan.choosing}):
            state = block(state)
        found.append(host.features(state))
    return torch.cat(found)


def main() -> None:
    """Measure all scores, dropped and merged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = open_device(args.device)
    model: Any = open_model("deit_tiny_patch16_224", args.checkpoint).to(device).requires_grad_(False)
    source = open_images(args.data, model=model, limit=args.images, seed=0)
    images = tensor_images(torch.cat([batch for batch, _ in source.batches(BATCH)]))
    host = open_host(model)
    features = Features(host, images, BATCH, 8 * 2**30)
    features.focus((0, host.info.depth))
    wanted = torch.cat([host.features(out) for (out,) in features.batches(host.info.depth)])
    rows: list[dict[str, Any]] = []
    for score in ("impact", "attention", "effect"):
        scores = exact_scores(host, features, COUNTS, score)
        for removed in ("drop", "merge"):
            found = readout(host, features, scores, removed)
            rows.append({"score": score, "removed": removed} | closeness(model.head, found, wanted))
            print(rows[-1], flush=True)
    if args.out is not None:
        table = {"images": len(wanted), "device": device_name(device), "torch": torch.__version__, "counts": COUNTS}
        write_json(args.out, table | {"rows": rows})


if __name__ == "__main__":
    main()
