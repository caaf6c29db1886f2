"""Do exported fp32 files say what PyTorch says? Every way of choosing, every format, on real images.

    python benchmarks/export_parity.py --checkpoint W --data TRAIN --val VAL --out results/export_parity_deit_tiny.json

Plans are searched on --images of TRAIN at --ratio of the MACs; files are compared with the model on --judges of VAL.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import timm
import torch

import patchslim as ps
from harness import head, in_memory, options
from patchslim.errors import ExportError
from patchslim.export import FORMATS
from patchslim.files import write_json
from patchslim.hosts.weights import load_weights_
from patchslim.slim import SlimModel

WAYS: dict[str, dict[str, Any]] = {
    "static drop": {"select": "static", "removed": "drop"},
    "static merge": {"select": "static", "removed": "merge"},
    "matched merge": {"select": "matched", "removed": "merge"},
    "predicted drop": {"select": "predicted", "removed": "drop"},
}


def main() -> None:
    """Slim in every way, export to every format, compare."""
    parser = options(__doc__)
    parser.add_argument("--ratio", type=float, default=0.57)
    parser.add_argument("--judges", type=int, default=500)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    host = timm.create_model(args.model).eval()
    load_weights_(host, args.checkpoint)
    source = in_memory(ps.open_images(args.data, model=host, limit=args.images, seed=args.seeds[0]))
    val = in_memory(ps.open_images(args.val, model=host, limit=args.judges, seed=args.seeds[0]))
    rows = []
    for way in args.ways:
        slim: Any = ps.slim(host, source, ps.SearchConfig(target_macs=args.ratio, seed=args.seeds[0], **WAYS[way]))
        for format in FORMATS:
            rows.append({"way": way, "format": format, "patches_per_block": list(slim.plan.counts)})
            rows[-1] |= compare(slim, format, val)
            print(rows[-1], flush=True)
    table = head(args, torch.device("cpu")) | {"target_macs": args.ratio, "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, table)


def compare(slim: SlimModel, format: str, val: Any) -> dict[str, Any]:
    """The comparison that `export` makes, or why it kept no file."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = ps.export(slim, Path(folder) / f"model{FORMATS[format].suffix}", format, images=val)
        except ExportError as error:
            return {"refused": str(error)}
        return dataclasses.asdict(done.fp32)


if __name__ == "__main__":
    main()
