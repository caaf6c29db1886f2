"""Do exported fp32 files say what PyTorch says? Runs of every kind, every format, on real images.

    python benchmarks/export_parity.py RUN [RUN …] --val VAL --out results/export_parity_deit_tiny.json

Files are compared with the run's model on --images of VAL, as `patchslim export` compares them.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import patchslim as ps
from harness import in_memory
from patchslim.data import ImageSource
from patchslim.errors import ExportError
from patchslim.export import FORMATS
from patchslim.files import write_json
from patchslim.slim import SlimModel, load_host


def main() -> None:
    """Export every run to every format, compare."""
    args = options()
    rows = []
    for run in args.runs:
        slim = ps.load(run)
        val = in_memory(ps.open_images(args.val, model=slim, limit=args.images, seed=args.seed))
        about = {
            "select": slim.plan.select,
            "removed": slim.plan.removed,
            "macs_ratio": ps.count_macs(slim) / ps.count_macs(load_host(run)),
            "patches_per_block": list(slim.plan.counts),
        }
        for format in FORMATS:
            rows.append(about | {"format": format} | compare(slim, format, val))
            print(rows[-1], flush=True)
    versions = {name: str(__import__(name).__version__) for name in ("torch", "onnxruntime", "openvino")}
    table = {"model": slim.host_info.name, "versions": versions, "seed": args.seed, "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, table)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--val", required=True)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def compare(slim: SlimModel, format: str, val: ImageSource) -> dict[str, Any]:
    """The comparison that `export` makes, or why it kept no file."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = ps.export(slim, Path(folder) / f"model{FORMATS[format].suffix}", format, images=val)
        except ExportError as error:
            return {"refused": str(error)}
        return dataclasses.asdict(done.fp32)


if __name__ == "__main__":
    main()
