"""Top-1 of exported files: host and slim model, fp32 and INT8 (plain, slim, quantised, both), in both runtimes.

    python benchmarks/export_accuracy.py --checkpoint W --data TRAIN --val VAL --out results/export_accuracy.json

The slim model is a run's (--run), or searched here: static drop at --ratio of the MACs, on the same --images
calibration images that INT8 sees. All are measured on the same validation images.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import patchslim as ps
from harness import head, in_memory, options
from patchslim.data import ImageSource
from patchslim.export import FORMATS
from patchslim.export.cpu import this_cpu
from patchslim.files import write_json
from patchslim.hosts.weights import load_weights_
from patchslim.measure import paired

RUNTIMES = ("onnx", "openvino")


def main() -> None:
    """Slim, export, measure."""
    parser = options(__doc__)
    parser.add_argument("--run", type=Path, help="a run folder instead of a search here")
    parser.add_argument("--ratio", type=float, default=0.57)
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES))
    parser.add_argument("--limit", type=int, help="validation images; all by default")
    args = parser.parse_args()
    host = timm.create_model(args.model).eval()
    load_weights_(host, args.checkpoint)
    source = in_memory(ps.open_images(args.data, model=host, limit=args.images, seed=args.seeds[0]))
    val = in_memory(ps.open_images(args.val, model=host, limit=args.limit))
    config = ps.SearchConfig(target_macs=args.ratio, removed="drop", seed=args.seeds[0])
    slim = ps.load(args.run) if args.run else ps.slim(host, source, config)
    models: dict[str, nn.Module] = {"host": host, "slim": slim}
    base = torch_hits(host, val)
    rows = [row("torch", "host", "fp32", base, base), row("torch", "slim", "fp32", torch_hits(slim, val), base)]
    with tempfile.TemporaryDirectory() as folder:
        for runtime, (name, model), int8 in itertools.product(args.runtimes, models.items(), (False, True)):
            kind, precision = FORMATS[runtime], "int8" if int8 else "fp32"
            path = Path(folder) / f"{name}-{precision}{kind.suffix}"
            done = ps.export(model, path, runtime, images=source, int8=int8)
            found = hits(kind.runner(path), val)
            rows.append(row(runtime, name, precision, found, base) | {"megabytes": done.bytes / 1e6})
            print(rows[-1], flush=True)
    cpu = this_cpu()
    table = head(args, torch.device("cpu")) | {
        "macs_ratio": ps.count_macs(slim) / ps.count_macs(host),
        "validation_images": len(base),
        "cpu": cpu.name,
        "int8_instructions": cpu.int8_instructions,
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, table)


def torch_hits(model: nn.Module, val: ImageSource) -> Tensor:
    """Which images PyTorch gets right: (images,)."""
    with torch.inference_mode():
        return hits(model, val)


def hits(run: Callable[[Tensor], Tensor], val: ImageSource) -> Tensor:
    """Which images get the right answer: (images,)."""
    found = [run(images).argmax(dim=1) == labels for images, labels in val.batches(50)]
    return torch.cat(found)


def row(runtime: str, model: str, precision: str, found: Tensor, base: Tensor) -> dict[str, Any]:
    """Top-1 in percent, and how it differs from the host's in PyTorch on the same images."""
    difference = paired(found, base)
    return {
        "runtime": runtime,
        "model": model,
        "precision": precision,
        "top1": float(found.double().mean() * 100),
        "points": difference.difference,
        "interval": [difference.low, difference.high],
    }


if __name__ == "__main__":
    main()
