"""Ways of matching and merging compared at two schedules, on unlabelled images: the tables in docs/decisions.md.

    python benchmarks/merge_variants.py --checkpoint deit_tiny_patch16_224.safetensors --data imagenet-train-1k-0000.tar

The error is that of the feature the head reads, relative and squared; KL is from the host's output to the slim model's.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import patchslim as ps
from harness import closeness
from patchslim.cli.common import open_device, open_model
from patchslim.data import open_images
from patchslim.files import write_json
from patchslim.hosts.base import Incoming
from patchslim.measure import device_name
from patchslim.plan import build_plan
from patchslim.slim.merge import TINY, Match, match_halves, merge, unit_keys
from patchslim.slim.reduce import Matched
from patchslim.slim.tokens import Tokens

SCHEDULES = [
    [196, 189, 182, 158, 128, 108, 87, 62, 52, 52, 49, 0],
    [180, 155, 155, 132, 102, 81, 60, 47, 41, 33, 33, 0],
]
SHIPPED = {"keys": "all heads", "pairs by": "product", "constant": 0.3, "weight": "attention", "length": "kept"}
OLD = SHIPPED | {"pairs by": "difference", "constant": 0.2}
VARIANTS: list[dict[str, Any]] = [
    OLD | {"keys": "mean head", "constant": 0.0, "weight": "size", "length": "shrinks"},
    OLD | {"keys": "mean head", "weight": "size", "length": "shrinks"},
    OLD | {"weight": "size", "length": "shrinks"},
    OLD | {"length": "shrinks"},
    OLD | {"weight": "size"},
    OLD,
    OLD | {"constant": 0.1},
    OLD | {"constant": 0.5},
    SHIPPED,
    SHIPPED | {"constant": 0.1},
    SHIPPED | {"constant": 1.0},
    SHIPPED | {"keys": "mean head"},
]


class Variant(Matched):
    """`Matched` with parts put back to what else was tried."""

    ways: dict[str, Any]

    def forward(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        k = incoming.k.mean(dim=1, keepdim=True) if self.ways["keys"] == "mean head" else incoming.k
        keys = unit_keys(k, self.prefix)
        importance = self.importance(tokens, incoming, block)
        assert importance is not None
        found = self._match(keys[:, ::2] @ keys[:, 1::2].transpose(1, 2), keys.shape[1] - self.n, importance[:, ::2])
        weight = importance if self.ways["weight"] == "attention" else None
        merged = merge(tokens, found, self.prefix, weight)
        if self.ways["length"] == "kept":
            return merged
        return merged._replace(x=self._shrunk(tokens, merged, weight, found.keep, found.gone, found.into))

    def _match(self, similarity: Tensor, r: int, importance: Tensor) -> Match:
        """Pairs of least distance × (importance + c), or of most similarity − c · importance: (B, ⌈t/2⌉, ⌊t/2⌋), and
        importance (B, ⌈t/2⌉)."""
        constant = self.ways["constant"]
        if self.ways["pairs by"] == "product":
            return match_halves(similarity, r, importance + constant)
        alike = similarity.amax(dim=2)
        # match_halves multiplies by the distance; divided by it here, so that it ranks by the difference.
        return match_halves(similarity, r, (constant * importance - alike) / (1 - alike).clamp_min(TINY))

    def _shrunk(
        self, tokens: Tokens, merged: Tokens, weight: Tensor | None, keep: Tensor, gone: Tensor, into: Tensor
    ) -> Tensor:
        """The plain weighted average, whose length is shorter than its members'."""
        x = tokens.x[:, self.prefix :]
        if weight is None:
            size = torch.ones_like(tokens.x[..., 0]) if tokens.size is None else tokens.size
            weight = size[:, self.prefix :]
        summed = (x * weight[..., None]).take_along_dim(keep[..., None], 1)
        total = weight.gather(1, keep)
        joins = (torch.arange(keep.shape[1], device=x.device)[:, None] == into[:, None, :]).to(x)
        summed = summed + joins @ (x * weight[..., None]).take_along_dim(gone[..., None], 1)
        total = total + (joins @ weight.gather(1, gone)[..., None])[..., 0]
        return torch.cat([merged.x[:, : self.prefix], summed / total[..., None]], dim=1)


def with_variant(model: nn.Module, ways: dict[str, Any], counts: list[int]) -> Any:
    """A slim model at one schedule that matches and merges in these ways."""
    fields: dict[str, Any] = {"select": "matched", "removed": "merge", "patches_per_block": counts}
    slim: Any = ps.apply(model, build_plan(ps.inspect(model), **fields))
    for block in slim.blocks:
        if isinstance(block.reduce, Matched):
            block.reduce = Variant(block.reduce.n, block.reduce.prefix, merges=True, weighed=True)
            block.reduce.ways = ways
    return slim


def features(model: Any, batches: list[Tensor]) -> Tensor:
    """What the head reads: (images, d)."""
    return torch.cat([model.forward_head(model.forward_features(batch), pre_logits=True) for batch in batches])


def options(doc: str | None, images: int) -> argparse.ArgumentParser:
    """The options of comparisons beside the host."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=images)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    return parser


def opened(args: argparse.Namespace) -> tuple[Any, list[Tensor], Tensor]:
    """The host, batches of images on its device, and what its head reads of them (images, d)."""
    device = open_device(args.device)
    model: Any = open_model("deit_tiny_patch16_224", args.checkpoint).to(device)
    source = open_images(args.data, model=model, limit=args.images, seed=0)
    batches = [images.to(device) for images, _ in source.batches(50)]
    return model, batches, features(model, batches)


@torch.inference_mode()
def main() -> None:
    """Measure all variants."""
    args = options(__doc__, 1000).parse_args()
    model, batches, wanted = opened(args)
    device = wanted.device
    rows = []
    for number, (counts, ways) in enumerate(itertools.product(SCHEDULES, VARIANTS)):
        found = features(with_variant(model, ways, counts), batches)
        rows.append({"schedule": number // len(VARIANTS)} | ways | closeness(model.head, found, wanted))
        print(rows[-1], flush=True)
    if args.out is not None:
        table = {"images": len(wanted), "device": device_name(device), "torch": torch.__version__}
        write_json(args.out, table | {"schedules": SCHEDULES, "rows": rows})


if __name__ == "__main__":
    main()
