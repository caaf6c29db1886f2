"""How far the static search should believe in cross terms: the table of trusts in docs/decisions.md.

    python benchmarks/trust_table.py --checkpoint deit_tiny_patch16_224.safetensors --data imagenet-train-1k-0000.tar

Static patches that drop, one MAC ratio; cross terms between removals count by a factor. Each plan is found on the first
images of a sample and judged on the last: the error of the feature the head reads, relative and squared; KL from the
host's output to the slim model's; how often the answer is the same. No labels.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import patchslim as ps
from harness import closeness
from patchslim.cli.common import open_device, open_model
from patchslim.data import open_images, tensor_images
from patchslim.files import write_json
from patchslim.hosts import open_host, open_slim
from patchslim.measure import device_name
from patchslim.scores.effect import Removal
from patchslim.slim.model import SlimModel

BATCH = 32
greedy: Any = importlib.import_module("patchslim.search.greedy")  # patchslim.search is the verb


def options(doc: str | None) -> argparse.ArgumentParser:
    """Those of a table by some training images, judged by others."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=256, help="to search with")
    parser.add_argument("--others", type=int, default=500, help="to judge by")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    return parser


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = options(__doc__)
    parser.add_argument("--trusts", nargs="+", type=float, default=[0.0, 0.5, 1.0])
    parser.add_argument("--target-macs", type=float, default=0.55)
    return parser.parse_args()


def opened(args: argparse.Namespace) -> tuple[Any, Tensor, Tensor]:
    """The model, the images to search with and those to judge by."""
    model: Any = open_model(args.model, args.checkpoint).to(open_device(args.device)).requires_grad_(False)
    count = args.images + args.others
    sample = open_images(args.data, model=model, limit=count, seed=0)
    images = torch.cat([batch for batch, _ in sample.batches(BATCH)])
    images = images[torch.randperm(count, generator=torch.Generator().manual_seed(0))]  # shards go by class
    return model, images[: args.images], images[-args.others :]


def written(args: argparse.Namespace, model: nn.Module, rows: list[dict[str, Any]]) -> None:
    """The raw file, where one is asked for."""
    if args.out is not None:
        device = device_name(next(model.parameters()).device)
        about = {"model": args.model, "device": device, "torch": torch.__version__, "dtype": "float32"}
        write_json(args.out, about | {"images": args.images, "others": args.others, "rows": rows})


@torch.no_grad()
def readout(model: nn.Module, images: Tensor) -> Tensor:
    """What the head reads, of a host or a slim model: (images, d)."""
    host = open_slim(model, model.host_info) if isinstance(model, SlimModel) else open_host(model)
    device, found = next(model.parameters()).device, []
    for batch in images.split(BATCH):
        x: Any = host.embed(batch.to(device))
        for block in host.blocks:
            x = block(x)
        found.append(host.features(x))
    return torch.cat(found)


def main() -> None:
    """One row per trust."""
    args = parse()
    model, own, others = opened(args)
    wanted, rows = readout(model, others), []
    settings = ps.SearchConfig(target_macs=args.target_macs, removed="drop", batch_size=BATCH)
    for trust in args.trusts:
        greedy.Removal = functools.partial(Removal, trust=trust)
        plan, _ = ps.search(model, tensor_images(own), settings)
        found = closeness(model.get_classifier(), readout(ps.apply(model, plan), others), wanted)
        known = {"trust": trust, "searched_error": plan.provenance["errors"]["readout"]}
        rows.append(known | found | {"patches_per_block": list(plan.counts)})
        print(json.dumps(rows[-1]), flush=True)
    written(args, model, rows)


if __name__ == "__main__":
    main()
