"""The tables of modes in docs/results.md: every way of choosing patches at every MAC ratio, searched and measured.

    python benchmarks/modes_table.py --checkpoint deit_tiny_patch16_224.safetensors \
        --data imagenet-train-1k-0000.tar --val imagenet-val-dev-0000.tar --out results/modes_deit_tiny.json

Each row is what `patchslim slim … --select S --removed P --target-macs R` followed by `patchslim eval` gives; here the
images are decoded once for all rows. Beside it: which images each row got right, so that rows can be compared pair by
pair; for predicted patches, how well G ranks the patches of the validation images; for thresholds, what images keep.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import patchslim as ps
from harness import head, in_memory, options
from patchslim.cli.common import open_device, open_model, workers_for
from patchslim.data import ImageSource, open_images
from patchslim.files import write_json
from patchslim.hosts import open_host
from patchslim.measure.accuracy import spread
from patchslim.peers.hits import to_hex
from patchslim.search.features import Features
from patchslim.search.ledger import Ledger
from patchslim.search.predict import Trainer
from patchslim.slim.assemble import load_choosers
from patchslim.slim.model import Counts, SlimModel, counting

STATIC = {
    f"static drop, {score}": {"score": score, "tune_epochs": 0}
    for score in ("impact", "attention", "random", "radial", "uniform")
}
MODES: dict[str, dict[str, Any]] = STATIC | {
    "static drop": {"removed": "drop"},
    "static merge": {"removed": "merge", "groups": "fixed"},
    "static merge, own groups": {},
    "matched drop": {"select": "matched", "removed": "drop"},
    "matched merge": {"select": "matched", "removed": "merge"},
    "predicted drop": {"select": "predicted", "removed": "drop"},
    "predicted drop, threshold": {"select": "predicted", "removed": "drop", "mode": "threshold"},
    "predicted drop, pool": {"select": "predicted", "removed": "drop", "score": "impact", "predictor": "pool"},
    "predicted merge": {"select": "predicted", "removed": "merge"},
    "predicted drop, impact": {"select": "predicted", "removed": "drop", "score": "impact", "predictor": "mlp"},
}


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = options(__doc__)
    parser.add_argument("--runs", type=Path, help="folder to save every row's run in")
    parser.add_argument("--memory", type=Path, help="folder for what searches find out, to go on after an interruption")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.6, 0.55])
    parser.add_argument("--batch-size", type=int, default=32)
    return parser.parse_args()


@torch.inference_mode()
def answers(model: nn.Module, val: ImageSource) -> tuple[Tensor, Tensor, Counts | None]:
    """(which images are right, the probability of each answer, patches kept where images differ)."""
    device = next(model.parameters()).device
    differs = isinstance(model, SlimModel) and model.plan.mode == "threshold"
    right, sure = [], []
    with counting(model) if differs else nullcontext() as counts:  # type: ignore[arg-type]
        for images, labels in val.batches(200):
            best = model(images.to(device)).softmax(dim=1).max(dim=1)
            right.append(best.indices.cpu() == labels)
            sure.append(best.values.cpu())
    return torch.cat(right), torch.cat(sure), counts


def kept_by_confidence(counts: Counts, sure: Tensor) -> list[dict[str, float]]:
    """Patches per block and MACs of four equal groups of images, those the host is least sure of first."""
    groups = sure.argsort().chunk(4)
    patches, macs = counts.patches().double(), counts.macs().double()
    return [
        {
            "confidence": float(sure[group].mean()),
            "patches": float(patches[group, :-1].mean()),
            "macs": float(macs[group].mean()),
        }
        for group in groups
    ]


def ranks(
    model: nn.Module, val: ImageSource, plan: ps.SlimPlan, weights: dict[str, Tensor], config: ps.SearchConfig
) -> dict[int, float]:
    """How well G ranks patches of images it has not seen, per block."""
    host = open_host(model)
    device = next(model.parameters()).device
    predictors: Any = {layer: found.to(device) for layer, found in load_choosers(host, plan, weights).items()}
    features = Features(host, val, config.batch_size, 16 * 2**30)
    found = Trainer(host, features, config, Ledger(), lambda event: None).rank_correlations(plan, predictors)
    return {layer: round(value, 4) for layer, value in found.items()}


def row(
    model: nn.Module, images: ImageSource, val: ImageSource, sure: Tensor, config: ps.SearchConfig, memory: Path
) -> Any:
    """One row: search, apply, measure. Returns it with the slim model. `memory` serves all ratios of a mode."""
    start = time.monotonic()
    plan, weights = ps.search(model, images, config, checkpoint=memory)
    seconds = time.monotonic() - start
    slim = ps.apply(model, plan, weights)
    right, _, counts = answers(slim, val)
    errors = plan.provenance["errors"]
    found: dict[str, Any] = {
        "target_macs": config.target_macs,
        "seed": config.seed,
        "top1": float(right.double().mean() * 100),
        "macs_ratio": ps.count_macs(slim) / ps.count_macs(model),
        "patches_per_block": list(plan.counts),
        "drops": plan.drops,
        "error": errors.get("readout", sum(errors.values()) / len(errors)),
        "seconds": round(seconds, 1),
        "right": to_hex(right),
    }
    if plan.select == "predicted" and plan.mode == "top-k":
        found["rank_correlation"] = ranks(model, val, plan, weights, config)
    if counts is not None:
        found["image_macs"] = spread(counts.macs().double() / ps.count_macs(model))
        found["by_confidence"] = kept_by_confidence(counts, sure)
    return found, slim


def main() -> None:
    """Measure all rows, writing after each."""
    args = parse()
    device = open_device(args.device)
    model = open_model(args.model, args.checkpoint).to(device)
    workers = workers_for(device)
    val = in_memory(open_images(args.val, model=model, workers=workers))
    right, sure, _ = answers(model, val)
    table: dict[str, Any] = {
        **head(args, device),
        "images": len(right),
        "base_top1": float(right.double().mean() * 100),
        "base_right": to_hex(right),
        "rows": [],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            images = in_memory(open_images(args.data, model=model, limit=args.images, seed=seed, workers=workers))
            for ratio in args.ratios:
                for mode in args.modes:
                    settings = ps.SearchConfig(target_macs=ratio, seed=seed, batch_size=args.batch_size, **MODES[mode])
                    memory = (args.memory or Path(folder)) / f"{mode} {seed}"
                    found, slim = row(model, images, val, sure, settings, memory)
                    table["rows"].append({"mode": mode} | found)
                    print(json.dumps({"mode": mode} | found), flush=True)
                    write_json(args.out, table)
                    if args.runs is not None:
                        name = f"{mode.replace(',', '').replace(' ', '_')}_{ratio:g}_{seed}"
                        ps.save(slim, args.runs / name)


if __name__ == "__main__":
    main()
