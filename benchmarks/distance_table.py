"""By what patches are matched: keys or distances from gradients, and which half of them may go. The table in
docs/decisions.md.

    python benchmarks/distance_table.py --checkpoint W --data imagenet-train-1k-0000.tar \
        --others 'natural-224-{0000..0001}.tar'

Matched merge at two schedules, which were found with keys, so that distances have no advantage by them. Distances are
learnt from the first images of a sample and judged by the last, and by images from elsewhere: the error of the feature
the head reads, relative and squared; KL from the host's output to the slim model's; how often the answer is the same.
No labels. W is DeiT-Ti's checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import patchslim as ps
from harness import closeness
from patchslim.cli.common import open_device, open_model
from patchslim.data import open_images, tensor_images
from patchslim.files import write_json
from patchslim.hosts import Host, open_host
from patchslim.hosts.base import Incoming
from patchslim.measure import device_name
from patchslim.plan import DistanceSpec, build_plan
from patchslim.search.distances import Moments, gather, set_distance_
from patchslim.search.features import Features
from patchslim.slim.assemble import name_choosers
from patchslim.slim.chooser import DISTANCE, chooser_fingerprint, distance_channels, make_distance
from patchslim.slim.merge import LEARNT_FLOOR, Match, match_halves, match_lighter, merge
from patchslim.slim.merge import closeness as nearness
from patchslim.slim.reduce import Matched
from patchslim.slim.tokens import Tokens, pick
from trust_table import BATCH, readout

SCHEDULES: list[dict[str, Any]] = [
    {"patches_per_block": [196, 196, 196, 164, 121, 104, 78, 62, 54, 44, 40, 0]},
    {"patches_per_block": [174, 157, 157, 128, 102, 78, 63, 48, 42, 36, 36, 0], "drops": [1, 2]},
]
Halves = Callable[[Tensor, int, Tensor], Match]  # (features (B, t, c), how many stay, weight (B, t))


def even_and_odd(z: Tensor, n: int, weight: Tensor) -> Match:
    """Every second patch may go."""
    return match_halves(nearness(z[:, ::2], z[:, 1::2]), z.shape[1] - n, weight[:, ::2])


HALVES: dict[str, Halves] = {"even": even_and_odd, "lighter": match_lighter}


class Variant(Matched):
    """`Matched` by distance with another floor or other halves."""

    floor: float
    power: float
    learnt: bool
    halves: Halves

    def forward(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        importance = self.importance(tokens, incoming, block)
        assert importance is not None
        z = block.distance(tokens.x[:, self.prefix :])
        weight = (importance + self.floor) ** self.power * (z[..., -1].exp() if self.learnt else 1)
        found = type(self).halves(z[..., :-1], self.n, weight)
        return merge(tokens, found, self.prefix, importance) if self.merges else pick(tokens, found.keep, self.prefix)


def by_keys(host: Host, schedule: dict[str, Any]) -> Any:
    """Matched by keys, as `slim --distance keys` does."""
    return ps.apply(host.model, build_plan(host.info, select="matched", removed="merge", **schedule))


def by_distance(
    host: Host, schedule: dict[str, Any], moments: list[Moments], *, channels: int, halves: str, **way: Any
) -> Any:
    """Matched by distances of so many channels."""
    distances = {layer: make_distance(host.info.width, channels) for layer in range(1, len(moments) + 1)}
    for layer, distance in distances.items():
        set_distance_(distance, moments[layer - 1])
    fields: dict[str, Any] = {"select": "matched", "removed": "merge"} | schedule
    choosing = build_plan(host.info, **fields).choosing
    weights = name_choosers(host, {layer: distances[layer] for layer in choosing}, DISTANCE)
    spec = DistanceSpec(channels=channels, weights=chooser_fingerprint(weights))
    slim: Any = ps.apply(host.model, build_plan(host.info, **fields, distance=spec), weights)
    kind = type("Variant", (Variant,), way | {"halves": staticmethod(HALVES[halves])})
    for block in slim.blocks:
        if isinstance(own := block.reduce, Matched):
            block.reduce = kind(own.n, own.prefix, own.merges, own.weighed)
    return slim


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--others", required=True, help="images from elsewhere, to judge by")
    parser.add_argument("--images", type=int, default=256, help="to learn distances from")
    parser.add_argument("--count", type=int, default=1000, help="images of either source; those not learnt from judge")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def drawn(source: str, model: Any, count: int) -> Tensor:
    """Some images in random order: shards go by class."""
    sample = open_images(source, model=model, limit=count, seed=0)
    images = torch.cat([batch for batch, _ in sample.batches(BATCH)])
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]


def main() -> None:
    """One row per schedule and way."""
    args = parse()
    device = open_device(args.device)
    model: Any = open_model("deit_tiny_patch16_224", args.checkpoint).to(device).requires_grad_(False)
    host, images = open_host(model), drawn(args.data, model, args.count)
    judges = {"data": images[args.images :], "others": drawn(args.others, model, args.count)}
    wanted = {name: readout(model, own) for name, own in judges.items()}
    moments = gather(host, Features(host, tensor_images(images[: args.images]), BATCH, 2**33), seed=0)
    usual = {
        "channels": distance_channels(host.info),
        "halves": "lighter",
        "learnt": True,
        "power": 2,
        "floor": LEARNT_FLOOR,
    }
    plain = usual | {"learnt": False, "power": 1}
    ways: list[dict[str, Any]] = [{}, plain | {"halves": "even", "floor": 0.3}, plain | {"floor": 0.3}, plain]
    ways += [usual | {"learnt": False}, usual | {"power": 1}, usual, usual | {"halves": "even"}]
    ways += [usual | {"floor": floor} for floor in (0.03, 0.3)] + [usual | {"channels": c} for c in (8, 16, 64)]
    rows = []
    for number, schedule in enumerate(SCHEDULES):
        for way in ways:
            slim = by_distance(host, schedule, moments, **way) if way else by_keys(host, schedule)
            found = {name: closeness(model.head, readout(slim, own), wanted[name]) for name, own in judges.items()}
            rows.append({"schedule": number, "by": "distance" if way else "keys"} | way | found)
            print(rows[-1], flush=True)
    if args.out is not None:
        table = {"learnt_from": args.images, "judged_by": {name: len(own) for name, own in judges.items()}}
        table |= {"device": device_name(device), "torch": torch.__version__}
        write_json(args.out, table | {"schedules": SCHEDULES, "rows": rows})


if __name__ == "__main__":
    main()
