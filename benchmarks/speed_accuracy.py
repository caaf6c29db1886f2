"""Throughput of the plans in the recovery table, and the figure of accuracy against it.

    python benchmarks/speed_accuracy.py --device cuda --dtype bfloat16 --batch-size 256 \
        --out results/speed_accuracy_deit_tiny_h200_torch2.11_bf16.json
    python benchmarks/speed_accuracy.py --draw

Time does not depend on which patches stay, only on how many do, so every plan is timed with the counts per block of its
row in results/recovery_*.json and random weights. The host is timed as it comes and with the slim models' embedding.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

import patchslim as ps
from harness import RESULTS
from patchslim.cli.common import open_device
from patchslim.files import write_json
from patchslim.hosts import open_host, with_matmul_embed
from patchslim.measure import device_name
from patchslim.search.sketch import sketch, slimmed
from patchslim.timing.contest import Contest
from patchslim.timing.modes import modes_for
from patchslim.timing.running import DTYPES
from tables import recoveries

RECOVERED = "recovery_deit_tiny_*.json"
WAYS = {
    "matched merge": ps.SearchConfig(target_macs=0.5, select="matched"),
    "predicted merge": ps.SearchConfig(target_macs=0.5, select="predicted"),
    "predicted drop": ps.SearchConfig(target_macs=0.5, select="predicted", removed="drop"),
    "static drop": ps.SearchConfig(target_macs=0.5, removed="drop"),
    "static merge": ps.SearchConfig(target_macs=0.5, removed="merge", groups="fixed"),
}
DOCS = Path(__file__).parent.parent / "docs"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16", choices=list(DTYPES))
    parser.add_argument("--modes", nargs="+", default=["auto"])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each model in each mode")
    parser.add_argument("--device")
    parser.add_argument("--draw", action="store_true", help="only figures and tables, from the raw files")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def models_of(name: str, ways: list[str]) -> tuple[dict[str, nn.Module], list[dict[str, Any]]]:
    """Slim models by the place of their row, and both hosts; what is known of each row."""
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    host = open_host(model)
    known = [row for row in recoveries(RECOVERED) if row["mode"] in ways]
    models: dict[str, nn.Module] = {"host": model, "same_embedding": with_matmul_embed(model)}
    for place, row in enumerate(known):
        plan = sketch(host.info, WAYS[row["mode"]], row["patches_per_block"])
        if row.get("drops"):
            plan = plan.model_copy(update={"drops": row["drops"]})
        models[str(place)] = slimmed(host, plan)
    return models, known


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """A row for every plan: its mode, MACs, top-1 and throughput."""
    device = open_device(args.device)
    models, known = models_of(args.model, args.ways)
    models = {name: model.to(device, DTYPES[args.dtype]).eval() for name, model in models.items()}
    info = ps.inspect(models["host"])
    batch = torch.randn(args.batch_size, info.channels, *info.image_size, device=device, dtype=DTYPES[args.dtype])
    contest = Contest(modes_for(args.modes, device, False), args.dtype, seconds=args.seconds, tell=print)
    timed = contest.time(models, batch)
    rates = {name: args.batch_size / own.seconds for name, own in timed.items()}
    about = ("mode", "target_macs", "macs_ratio", "patches_per_block", "top1_before", "top1_after")
    found = [
        {name: row[name] for name in about} | {"throughput": rates[str(place)], "run_mode": timed[str(place)].best}
        for place, row in enumerate(known)
    ]
    return {
        "model": args.model,
        "device": device_name(device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": args.dtype,
        "batch_size": args.batch_size,
        "host_throughput": rates["host"],
        "same_embedding_throughput": rates["same_embedding"],
        "base_top1": known[0]["base_top1"],
        "rows": found,
    }


def draw(table: dict[str, Any]) -> None:
    """Accuracy against throughput, a line for each mode: dashed as slimmed, solid recovered."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    for number, mode in enumerate(WAYS):
        own = sorted((row for row in table["rows"] if row["mode"] == mode), key=lambda row: row["throughput"])
        rates = [row["throughput"] for row in own]
        axes.plot(rates, [row["top1_after"] for row in own], "o-", color=f"C{number}", label=mode)
        axes.plot(rates, [row["top1_before"] for row in own], "o--", color=f"C{number}", alpha=0.45, markersize=4)
    axes.plot(table["host_throughput"], table["base_top1"], "k*", markersize=12, label="host")
    on = f"{table['threads']} threads of a CPU" if table["device"] == "cpu" else table["device"]
    axes.set_xlabel(f"images/s: {on}, {table['dtype']}, batch {table['batch_size']}, torch {table['torch']}")
    axes.set_ylabel("top-1, %")
    axes.set_title("DeiT-Ti, no labels: dashed as slimmed, solid after recovery", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(DOCS / f"speed_accuracy_{'cpu' if table['device'] == 'cpu' else 'gpu'}.png", dpi=110)
    plt.close(figure)


def show(table: dict[str, Any]) -> None:
    """The table of the docs, fastest last."""
    print("| | MACs | images/s | speed-up | top-1 | recovered |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(f"| host | 1 | {table['host_throughput']:.1f} | | {table['base_top1']:.2f} | |")
    for row in sorted(table["rows"], key=lambda row: row["throughput"]):
        rate = f"{row['throughput']:.1f} | {row['throughput'] / table['host_throughput']:.2f}×"
        print(
            f"| {row['mode']} | {row['macs_ratio']:.3f} | {rate} | {row['top1_before']:.2f} | {row['top1_after']:.2f} |"
        )


def main() -> None:
    """Measure, or draw what was measured."""
    args = options()
    if args.draw:
        for path in sorted(RESULTS.glob("speed_accuracy_*.json")):
            table = json.loads(path.read_text())
            draw(table)
            show(table)
        return
    table = measure(args)
    if args.out is not None:
        if args.out.exists():  # what it holds of other ways stays
            before = json.loads(args.out.read_text())["rows"]
            table["rows"] = [row for row in before if row["mode"] not in args.ways] + table["rows"]
        write_json(args.out, table)


if __name__ == "__main__":
    main()
