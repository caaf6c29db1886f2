"""`patchslim demo`: the whole way on the bundled digits model, in about a minute."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from patchslim.cli.common import AsJson, console, open_model
from patchslim.cli.progress import show_search
from patchslim.data import open_images
from patchslim.files import write_json
from patchslim.hosts import HostInfo, inspect
from patchslim.measure import compare, evaluate
from patchslim.plan import SlimPlan
from patchslim.report import draw_kept
from patchslim.runs import STARTED, check_folder, make_run
from patchslim.search import SearchConfig
from patchslim.slim import SlimModel, load
from patchslim.slim.store import CONFIG, METRICS, SEARCH

PICTURE = "kept_patches.png"
SETTINGS = SearchConfig(target_macs=0.55, step=2, tune_epochs=3, batch_size=64)
CALIBRATION_IMAGES = 512


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Run folder.")] = Path("demo"),
    as_json: AsJson = False,
) -> None:
    """Slim the bundled digits model: search, measure, draw. Needs no data and no GPU."""
    remove_old_demo(out)
    check_folder(out, resume=False)
    host = open_model("digits_vit", pretrained=True)
    console.print(f"Slimming {inspect(host)}")
    train = open_images("digits:train", model=host, limit=CALIBRATION_IMAGES)
    started = {
        "demo": True,
        "model": "digits_vit",
        "settings": SETTINGS.as_dict(),
        "data": {"source": "digits:train"},
    }
    with show_search(inspect(host)) as listen:
        metrics = make_run(host, train, SETTINGS, out, started, listen)
    slim = load(out)
    metrics |= measure(host, slim)
    write_json(out / METRICS, metrics)
    held_out = open_images("digits:test", model=host)
    title = f"Patches that digits_vit computes, {1 - metrics['macs_ratio']:.0%} fewer MACs"
    draw_kept(SlimPlan.load(out / "plan.json"), [held_out.picture(i) for i in range(4)], out / PICTURE, title)
    if as_json:
        print(json.dumps({"run": str(out), "picture": str(out / PICTURE)} | metrics))
    else:
        show(metrics, out, inspect(host))


def remove_old_demo(folder: Path) -> None:
    """Make room where an earlier demo left its run, and only there."""
    for settings in (folder / CONFIG, folder / SEARCH / STARTED):
        try:
            data = json.loads(settings.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(data, dict) and data.get("demo") is True and not folder.is_symlink():
            shutil.rmtree(folder)
            return


def measure(host: nn.Module, slim: SlimModel) -> dict[str, Any]:
    """Accuracy on the held-out digits and throughput, before and after."""
    held_out = open_images("digits:test", model=host)
    console.print(f"Measuring on {len(held_out)} digits that neither training nor slimming has seen")
    before, after = evaluate(host, held_out), evaluate(slim, held_out)
    batch = torch.cat([images for images, _ in held_out.batches(64)])[:64]
    speed = compare(slim, host, batch, "float32", compiled=False, seconds=3.0)
    return {
        "host_top1": before.top1,
        "top1": after.top1,
        "images": after.images,
        "throughput": speed["throughput"],
        "baseline_throughput": speed["baseline_throughput"],
        "speedup": speed["speedup"],
        "ideal_speedup": speed["ideal_speedup"],
    }


def show(metrics: dict[str, Any], out: Path, info: HostInfo) -> None:
    """The before/after table, and where everything is."""
    table = Table(title="digits_vit, before and after")
    for name in ("", "host", "slim", "change"):
        table.add_column(name, justify="left" if not name else "right")
    top1, host_top1 = metrics["top1"], metrics["host_top1"]
    table.add_row("top-1, held-out digits", f"{host_top1:.1f} %", f"{top1:.1f} %", f"{top1 - host_top1:+.1f} points")
    macs, host_macs = metrics["macs"], metrics["host_macs"]
    table.add_row("MACs per image", f"{host_macs / 1e6:.1f} M", f"{macs / 1e6:.1f} M", f"{macs / host_macs - 1:+.1%}")
    slim_rate, host_rate = metrics["throughput"], metrics["baseline_throughput"]
    table.add_row("images/s, batch 64", f"{host_rate:.0f}", f"{slim_rate:.0f}", f"{slim_rate / host_rate:.2f}×")
    for block, patches in enumerate(metrics["patches_per_block"], start=1):
        tokens = info.prefix_tokens + patches
        change = f"{tokens / info.tokens - 1:+.0%}"
        table.add_row(f"tokens computed, block {block}", str(info.tokens), str(tokens), change)
    stdout = Console()
    stdout.print(table)
    stdout.print(f"run folder: {out}   picture: {out / PICTURE}", highlight=False)
