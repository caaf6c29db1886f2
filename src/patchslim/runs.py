"""Making a run folder: search, apply, write; and going on with one that was interrupted."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.data import ImageSource
from patchslim.errors import RunError
from patchslim.files import read_json, write_json
from patchslim.hosts import HostInfo, inspect
from patchslim.macs import count_macs, host_macs
from patchslim.plan import SlimPlan
from patchslim.search import SearchConfig, search
from patchslim.search.ledger import LEDGER
from patchslim.search.topdown import Listener
from patchslim.slim import apply, load
from patchslim.slim.store import CONFIG, METRICS, PLAN, SEARCH, holds_run, write_run

STARTED, LOG = "started.json", "log.jsonl"
SOURCE = "source"  # where the images lay; the fingerprint, not the place, decides whether they are the same


def check_folder(folder: Path, resume: bool) -> None:
    """Raise RunError unless a run may be written, or gone on with, in this folder."""
    if folder.is_symlink() and not folder.exists():
        raise RunError(f"{folder} is a link to nowhere; choose another run folder with --out.")
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another run folder with --out.")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not holds_run(folder):
        raise RunError(f"{folder} is not empty and holds no run; choose another run folder with --out.")
    if not resume:
        raise RunError(f"{folder} already holds a run; go on with --resume, or choose another folder with --out.")


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
    if (folder / PLAN).exists():
        return _finished(folder, started)
    fresh = not folder.exists()
    start = time.monotonic()
    try:
        (folder / SEARCH).mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            _check_same(folder, folder / SEARCH / STARTED, started)
            write_json(folder / SEARCH / STARTED, started)
            listen = _logged(folder / LOG, listen)
            plan, tuned = search(network, source, config, checkpoint=folder / SEARCH, listen=listen)
            metrics = measure_plan(network, plan) | {
                "seconds": round(time.monotonic() - start, 1),
                "peak_memory_gib": round(peak_memory_gib(), 2),
                "skipped_images": source.skipped,
            }
            write_run(apply(network, plan, tuned), folder, started, metrics)
            shutil.rmtree(folder / SEARCH)
    except BaseException:
        if fresh and folder.exists() and not (folder / SEARCH / LEDGER).exists() and not (folder / PLAN).exists():
            shutil.rmtree(folder)  # nothing found yet: leave nothing behind
        raise
    return metrics


def _finished(folder: Path, started: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a run that is whole; RunError when it is damaged or was made from something else."""
    slim = load(folder)
    _check_same(folder, folder / CONFIG, started)
    shutil.rmtree(folder / SEARCH, ignore_errors=True)  # a crash may have come between the plan and this
    known = read_json(folder / METRICS, RunError, "run's metrics")
    plan = SlimPlan.load(folder / PLAN)
    metrics = {"seconds": 0.0, "skipped_images": 0} | known | measure_plan(slim, plan)
    if not all(isinstance(metrics[name], (int, float)) for name in ("seconds", "skipped_images")):
        raise RunError(f"{folder / METRICS} is damaged; the model itself is whole and can be loaded.")
    return metrics


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second process out of a folder while one is at work; the system frees it if that one dies."""
    with (folder / SEARCH / "lock").open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except BlockingIOError:
            raise RunError(f"Another process is working on {folder}; wait for it or choose another folder.") from None
        yield


def _logged(log: Path, listen: Listener) -> Listener:
    """A listener that also writes every event as a line of JSON."""
    start = time.monotonic()

    def write(event: Mapping[str, Any]) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"seconds": round(time.monotonic() - start, 3)} | dict(event)) + "\n")
        listen(event)

    return write


def _check_same(folder: Path, path: Path, started: Mapping[str, Any]) -> None:
    """Raise RunError when the run was started with another model, other settings, weights or images."""
    if not path.exists():
        if (folder / SEARCH / LEDGER).exists():
            raise RunError(f"{folder} can't be resumed: its {STARTED} is missing; remove it and start again.")
        return
    before = read_json(path, RunError, "run's settings")
    for name, value in started.items():
        if name != SOURCE and before.get(name) != value:
            raise RunError(
                f"{folder} was started with other {name} ({_difference(before.get(name), value)}); "
                "resume with the same, or choose another folder with --out."
            )


def _difference(before: Any, now: Any) -> str:
    """The first thing two settings differ in."""
    if isinstance(before, dict) and isinstance(now, dict):
        name = next(key for key in {**now, **before} if before.get(key) != now.get(key))
        return f"{name} {_difference(before.get(name), now.get(name))}"
    return f"{before}, now {now}"


def measure_plan(network: nn.Module, plan: SlimPlan) -> dict[str, Any]:
    """MACs and tokens of a plan."""
    info: HostInfo = getattr(network, "host_info", None) or inspect(network)
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
