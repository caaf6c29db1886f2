"""Making a run folder: search, apply, write; and going on with one that was interrupted."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.data import ImageSource
from patchslim.errors import RunError
from patchslim.files import read_json, write_json
from patchslim.hosts import inspect
from patchslim.macs import count_macs, host_macs
from patchslim.plan import SlimPlan
from patchslim.search import SearchConfig, search
from patchslim.search.ledger import LEDGER
from patchslim.search.topdown import Listener
from patchslim.slim import apply
from patchslim.slim.store import CONFIG, METRICS, PLAN, SEARCH, holds_run, write_run

STARTED, LOG = "started.json", "log.jsonl"


def check_folder(folder: Path, resume: bool) -> None:
    """Raise RunError unless a run may be written, or gone on with, in this folder."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another run folder with --out.")
    if resume or not folder.exists():
        return
    if holds_run(folder):
        raise RunError(f"{folder} already holds a run; go on with --resume, or choose another folder with --out.")
    if any(folder.iterdir()):
        raise RunError(f"{folder} is not empty; choose another run folder with --out.")


def make_run(
    network: nn.Module,
    source: ImageSource,
    config: SearchConfig,
    folder: Path,
    started: Mapping[str, Any],
    listen: Listener = lambda event: None,
) -> dict[str, Any]:
    """Search, apply, and write the run; returns its metrics. A finished run of the same settings is left alone.

    `started` says what the run is made from; an interrupted one goes on only if it is the same.
    """
    state = folder / SEARCH
    check_same(folder, started)
    if (folder / PLAN).exists():
        return read_json(folder / METRICS, RunError, "run's metrics")
    fresh = not folder.exists()
    state.mkdir(parents=True, exist_ok=True)
    write_json(state / STARTED, started)
    start = time.monotonic()
    try:
        plan, tuned = search(network, source, config, checkpoint=state, listen=_logged(folder / LOG, listen))
    except BaseException:
        if fresh and not (state / LEDGER).exists():
            shutil.rmtree(folder)  # nothing found yet: leave nothing behind
        raise
    result = apply(network, plan, tuned)
    metrics = measure_plan(network, plan) | {
        "seconds": round(time.monotonic() - start, 1),
        "peak_memory_gib": round(peak_memory_gib(), 2),
        "skipped_images": source.skipped,
    }
    write_run(result, folder, started, metrics)
    shutil.rmtree(state)
    return metrics


def _logged(log: Path, listen: Listener) -> Listener:
    """A listener that also writes every event as a line of JSON."""
    start = time.monotonic()

    def write(event: Mapping[str, Any]) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"seconds": round(time.monotonic() - start, 3)} | dict(event)) + "\n")
        listen(event)

    return write


def check_same(folder: Path, started: Mapping[str, Any]) -> None:
    """Raise RunError when the folder's run was started with another model, other settings or other images."""
    path = folder / SEARCH / STARTED if (folder / SEARCH).exists() else folder / CONFIG
    if not path.exists():
        return
    before = read_json(path, RunError, "run's settings")
    for name, value in started.items():
        if before.get(name) != value:
            raise RunError(
                f"{folder} was started with another {name} ({difference(before.get(name), value)}); "
                "resume with the same, or choose another folder with --out."
            )


def difference(before: Any, now: Any) -> str:
    """The first thing two settings differ in."""
    if isinstance(before, dict) and isinstance(now, dict):
        name = next(key for key in now if before.get(key) != now[key])
        return f"{name} {difference(before.get(name), now[name])}"
    return f"{before}, now {now}"


def measure_plan(network: nn.Module, plan: SlimPlan) -> dict[str, Any]:
    """MACs and tokens of a plan."""
    info = inspect(network)
    macs = count_macs(network, plan)
    return {
        "macs": macs,
        "macs_ratio": macs / host_macs(info),
        "host_macs": host_macs(info),
        "patches_per_block": list(plan.counts),
        "tolerance": plan.provenance["tolerance"],
        "errors": plan.provenance["errors"],
    }


def peak_memory_gib() -> float:
    """The most memory this process has held; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0.0
    import resource

    scale = 2**30 if sys.platform == "darwin" else 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
