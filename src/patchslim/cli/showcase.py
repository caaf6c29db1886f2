"""What `patchslim demo` does: the whole way on the bundled digits model, in a minute or two."""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import nn

from patchslim.cli.opening import open_model
from patchslim.cli.terminal import console, show_search
from patchslim.data import open_images
from patchslim.errors import RunError
from patchslim.files import read_json
from patchslim.folder import STARTED
from patchslim.hosts import HostInfo, inspect
from patchslim.measure import evaluate
from patchslim.methods import DEFAULT, PLAINEST, Task, make
from patchslim.report import draw_kept, draw_sources
from patchslim.runs.make import check_runs_folder, make_runs
from patchslim.runs.store import CONFIG, SEARCH, load, put_metrics
from patchslim.search import Target
from patchslim.slimmed import plan_of, sources
from patchslim.timing import time_side_by_side

KEPT_PICTURE, MERGED_PICTURE = "kept_patches.png", "merged_patches.png"
RATIO = 0.55  # of the host's MACs
CALIBRATION_IMAGES = 512
BATCH = 64  # images at a time where speed is measured
DRAWN = 4  # held-out digits in the pictures


@dataclass
class Run:
    """One of the demo's two runs: where it is, and what is known of it."""

    folder: Path
    picture: Path
    slim: nn.Module
    metrics: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """As the JSON output has it."""
        return {"run": str(self.folder), "picture": str(self.picture)} | self.metrics

    @property
    def title(self) -> str:
        """Over its picture."""
        method, saved = self.metrics["method"], 1 - self.metrics["macs_ratio"]
        return f"Patches of digits_vit by `{method}`, {saved:.0%} fewer MACs"


def show_digits(out: Path, as_json: bool) -> None:
    """Slim the digits model twice, measure, draw, tell."""
    remove_old_demo(out)
    check_runs_folder(out, resume=False, sweep=False)
    host = open_model("digits_vit", pretrained=True)
    console.print(f"Slimming {inspect(host)}")
    console.print(f"Searching how many patches to merge in each block (method {DEFAULT})")
    merged = slim_digits(host, DEFAULT, out, out / MERGED_PICTURE)
    console.print(f"Searching which patches leave, the same ones for every image (method {PLAINEST})")
    plain = slim_digits(host, PLAINEST, out / PLAINEST, out / KEPT_PICTURE)
    measure(host, (merged, plain))
    draw(host, merged, plain)
    if as_json:
        print(json.dumps(merged.as_dict() | {PLAINEST: plain.as_dict()}))
    else:
        show((merged, plain), inspect(host))


def remove_old_demo(folder: Path) -> None:
    """Make room where an earlier demo left its run, and only there."""
    for settings in (folder / CONFIG, folder / SEARCH / STARTED):
        with suppress(RunError):
            if read_json(settings, RunError, "demo's settings").get("demo") is True and not folder.is_symlink():
                shutil.rmtree(folder)
                return


def slim_digits(host: nn.Module, method: str, folder: Path, picture: Path) -> Run:
    """Search on the training digits, with a bar to watch, and write the run."""
    train = open_images("digits:train", model=host, limit=CALIBRATION_IMAGES)
    target = Target(macs=RATIO)
    about = {"model": "digits_vit", "method": method, "target": target.as_dict(), "data": {"source": "digits:train"}}
    with show_search(inspect(host)) as listen:
        task = Task.of(host, train, target, batch_size=64, progress=listen)
        metrics = make_runs(task, make(method), folder, {"demo": True} | about)[folder]
    return Run(folder, picture, load(folder), metrics)


def measure(host: nn.Module, runs: Sequence[Run]) -> None:
    """Add accuracy on the held-out digits and throughput to every run's metrics, in hand and on disk.

    All models are timed in turns, so that one host's throughput serves as every run's baseline.
    """
    held_out = open_images("digits:test", model=host)
    console.print(f"Measuring on {len(held_out)} digits that neither training nor slimming has seen")
    before = evaluate(host, held_out)
    batch = next(held_out.batches(BATCH))[0]
    base, *timings = time_side_by_side([host, *(run.slim for run in runs)], batch)
    for run, timing in zip(runs, timings, strict=True):
        after = evaluate(run.slim, held_out)
        run.metrics |= {
            "host_top1": before.top1,
            "top1": after.top1,
            "images": after.images,
            "throughput": timing.throughput(len(batch)),
            "baseline_throughput": base.throughput(len(batch)),
            "speedup": base.median / timing.median,
            "ideal_speedup": run.metrics["host_macs"] / run.metrics["macs"],
        }
        put_metrics(run.folder, run.metrics)


def draw(host: nn.Module, merged: Run, plain: Run) -> None:
    """Both pictures, of the same held-out digits."""
    held_out, plan = open_images("digits:test", model=host), plan_of(plain.slim)
    assert plan is not None
    pictures = [held_out.picture(number) for number in range(DRAWN)]
    batch = next(held_out.batches(DRAWN))[0]
    draw_sources(pictures, sources(merged.slim, batch), inspect(host).grid, merged.picture, merged.title)
    draw_kept(plan, pictures, plain.picture, plain.title)


def show(runs: Sequence[Run], info: HostInfo) -> None:
    """The table of the host and both runs, and where everything is."""
    every = [run.metrics for run in runs]
    host = every[0]  # timed once, in turns with both
    table = Table(title="digits_vit, before and after")
    for name in ("", "host", *(own["method"] for own in every)):
        table.add_column(name, justify="right" if name else "left")
    top1 = [f"{own['top1']:.1f} % ({own['top1'] - own['host_top1']:+.1f} points)" for own in every]
    macs = [f"{own['macs'] / 1e6:.1f} M ({own['macs_ratio'] - 1:+.1%})" for own in every]
    rate = [f"{own['throughput']:.0f} ({own['speedup']:.2f}×)" for own in every]
    table.add_row("top-1, unseen digits", f"{host['host_top1']:.1f} %", *top1)
    table.add_row("MACs per image", f"{host['host_macs'] / 1e6:.1f} M", *macs)
    table.add_row(f"images/s, batch {BATCH}", f"{host['baseline_throughput']:.0f}", *rate)
    for block in range(info.depth):
        tokens = [str(info.prefix_tokens + own["patches_per_block"][block]) for own in every]
        table.add_row(f"tokens in block {block + 1}", str(info.tokens), *tokens)
    stdout = Console()
    stdout.print(table)
    for run in runs:
        stdout.print(f"run folder: {run.folder}   picture: {run.picture}", highlight=False)
