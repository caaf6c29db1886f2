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
from patchslim.files import read_json
from patchslim.hosts import HostInfo, inspect
from patchslim.hosts.weights import write_weights
from patchslim.macs import count_macs, host_macs
from patchslim.plan import SPEED, SlimPlan
from patchslim.runs.folder import check_started, searching
from patchslim.search import SearchConfig, search
from patchslim.search.topdown import Listener
from patchslim.slim import apply, load
from patchslim.slim.chooser import is_chooser_key
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
    start = time.monotonic()
    with searching(folder, started, listen) as told:
        plan, tuned = search(network, source, config, checkpoint=folder / SEARCH, listen=told)
        known = {"seconds": round(time.monotonic() - start, 1), "skipped_images": source.skipped}
        return write_found(network, plan, tuned, folder, started, known)


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
    if any(not is_chooser_key(name) for name in tuned):
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


def measure_plan(network: nn.Module, plan: SlimPlan) -> dict[str, Any]:
    """MACs and tokens of a plan, and the speed-up that it predicts."""
    info: HostInfo = getattr(network, "host_info", None) or inspect(network)
    macs = count_macs(network, plan)
    speed = {SPEED: plan.provenance[SPEED]} if SPEED in plan.provenance else {}
    return speed | {
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
