"""Making a run folder: search, apply, write; and going on with one that was interrupted."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.errors import RunError
from patchslim.files import check_same, read_json, write_json
from patchslim.hosts import HostInfo, inspect
from patchslim.hosts.weights import write_weights
from patchslim.macs import count_macs, host_macs
from patchslim.plan import SlimPlan
from patchslim.runs.folder import LOG, OTHERWISE, SOURCE, STARTED, alone, logged
from patchslim.search import SearchConfig, search
from patchslim.search.ledger import LEDGER
from patchslim.search.topdown import Listener
from patchslim.slim import apply, load
from patchslim.slim.predictor import is_predictor_key
from patchslim.slim.store import CONFIG, HOST_WEIGHTS, METRICS, PLAN, SEARCH, write_run


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
        return finished(folder, started)
    fresh = not folder.exists()
    start = time.monotonic()
    try:
        (folder / SEARCH).mkdir(parents=True, exist_ok=True)
        with alone(folder, SEARCH):
            check_started(folder, folder / SEARCH / STARTED, started)
            write_json(folder / SEARCH / STARTED, started)
            listen = logged(folder / LOG, listen)
            plan, tuned = search(network, source, config, checkpoint=folder / SEARCH, listen=listen)
            metrics = {"seconds": round(time.monotonic() - start, 1), "skipped_images": source.skipped}
            metrics = write_found(network, plan, tuned, folder, started, metrics)
            shutil.rmtree(folder / SEARCH)
    except BaseException:
        if fresh and folder.exists() and not (folder / SEARCH / LEDGER).exists() and not (folder / PLAN).exists():
            shutil.rmtree(folder)  # nothing found yet: leave nothing behind
        raise
    return metrics


def write_found(
    network: nn.Module,
    plan: SlimPlan,
    tuned: Mapping[str, Tensor],
    folder: Path,
    started: Mapping[str, Any],
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """Write a run of what a search found; returns its metrics, `known` among them."""
    metrics = measure_plan(network, plan) | {"peak_memory_gib": round(peak_memory_gib(), 2)} | dict(known)
    if any(not is_predictor_key(name) for name in tuned):
        folder.mkdir(parents=True, exist_ok=True)
        write_weights(folder / HOST_WEIGHTS, network.state_dict())  # the teacher of a later recovery
    write_run(apply(network, plan, tuned), folder, started, metrics)
    return metrics


def finished(folder: Path, started: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a run that is whole; RunError when it is damaged or was made from something else."""
    slim = load(folder)
    check_started(folder, folder / CONFIG, started)
    shutil.rmtree(folder / SEARCH, ignore_errors=True)  # a crash may have come between the plan and this
    known = read_json(folder / METRICS, RunError, "run's metrics")
    plan = SlimPlan.load(folder / PLAN)
    metrics = {"seconds": 0.0, "skipped_images": 0} | known | measure_plan(slim, plan)
    if not all(isinstance(metrics[name], (int, float)) for name in ("seconds", "skipped_images")):
        raise RunError(f"{folder / METRICS} is damaged; the model itself is whole and can be loaded.")
    return metrics


def check_started(folder: Path, path: Path, started: Mapping[str, Any]) -> None:
    """Raise RunError when the run was started with another model, other settings, weights or images."""
    if not path.exists():
        if (folder / SEARCH / LEDGER).exists():
            raise RunError(f"{folder} can't be resumed: its {STARTED} is missing; remove it and start again.")
        return
    before = read_json(path, RunError, "run's settings")
    now = {name: value for name, value in started.items() if name != SOURCE}
    check_same(before, now, str(folder), OTHERWISE)


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
