"""Run eagerly, does a model wait for the GPU or for Python? Seconds until a batch is given to the GPU, and until it is
done: where both are the same, launching kernels is all that takes time.

    python benchmarks/launches.py --model deit_small_patch16_224 --out results/launches_deit_small_h200.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import patchslim as ps
from drawn import matched_by_distance, static_plan
from paper_harness import command
from patchslim.cli.common import open_device
from patchslim.files import write_json
from patchslim.hosts import open_host
from patchslim.measure import device_name
from patchslim.timing.latency import wait_for
from patchslim.timing.running import DTYPES

WARM_UP = 5


def timed(model: nn.Module, batch: Tensor, calls: int) -> dict[str, float]:
    """Milliseconds for a batch: until everything is launched, until everything is done."""
    with torch.inference_mode():
        for _ in range(WARM_UP):
            model(batch)
        wait_for(batch.device)
        start = time.perf_counter()
        for _ in range(calls):
            model(batch)
        launched = time.perf_counter() - start
        wait_for(batch.device)
        done = time.perf_counter() - start
    return {"launched_ms": 1e3 * launched / calls, "done_ms": 1e3 * done / calls}


def main() -> None:
    """Host, static drop and matched merge, batch size by batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--ratio", type=float, default=0.57, help="of the host's MACs")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 256])
    parser.add_argument("--dtype", default="bfloat16", choices=list(DTYPES))
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device, dtype = open_device(args.device), DTYPES[args.dtype]
    torch.manual_seed(0)
    host = timm.create_model(args.model).eval()
    info = ps.inspect(host)
    models = {"host": host, "static drop": ps.apply(host, static_plan(info, args.ratio))}
    models |= {"matched merge": ps.apply(host, *matched_by_distance(open_host(host), args.ratio))}
    rows: list[dict[str, Any]] = []
    for size in args.batch_sizes:
        batch = torch.randn(size, info.channels, *info.image_size, device=device, dtype=dtype)
        for name, model in models.items():
            found = timed(model.to(device, dtype).eval(), batch, args.calls)
            rows.append({"batch_size": size, "row": name} | found)
            print(f"batch {size}, {name}: launched {found['launched_ms']:.2f} ms, done {found['done_ms']:.2f} ms")
    about = {"model": args.model, "device": device_name(device), "torch": torch.__version__, "dtype": args.dtype}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, about | {"ratio": args.ratio, "rows": rows})


if __name__ == "__main__":
    command(main)
