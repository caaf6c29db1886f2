"""Making run folders: fit a method, apply its plan, write; and going on with what was interrupted."""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.cache import Cache, begun
from patchslim.errors import BudgetError, RunError
from patchslim.files import write_json
from patchslim.folder import SOURCE, blank, check_folder, check_started, working
from patchslim.hosts import inspect
from patchslim.macs import count_macs, host_macs
from patchslim.methods import Task, fit
from patchslim.plan import SPEED, SlimPlan
from patchslim.runs.expected import expected_speedup
from patchslim.runs.manifest import MANIFEST, check_files
from patchslim.runs.store import CONFIG, PLAN, SEARCH, holds_run, load, read_metrics, write_run
from patchslim.runs.sweep import run_name, swept
from patchslim.slimmed import apply, own_keys

SWEEP = "sweep.json"  # the runs of a finished sweep, and their metrics
WITHOUT_A_PLAN = (
    "This method makes a model that no plan describes, so there is no run to write; "
    "measure it with `patchslim compare`, or use ps.slim in Python."
)
Metrics = dict[str, Any]


def runs_in(folder: Path) -> list[Path]:
    """The runs of a sweep's folder, or the folder itself."""
    return swept(folder) or [folder]


def check_runs_folder(folder: Path, resume: bool, sweep: bool) -> None:
    """Raise RunError unless a run, or a sweep of several, may be written or gone on with in this folder."""
    if blank(folder, SEARCH, lambda: begun(folder / SEARCH)):
        return
    if sweep and (folder / PLAN).exists():
        raise RunError(f"{folder} holds a run of one MAC ratio; choose another folder with --out for several.")
    if sweep and swept(folder):
        check_folder(folder, resume, lambda own: True, "sweep")
    else:
        check_folder(folder, resume, holds_run)


def make_runs(
    task: Task,
    method: Any,
    folder: Path,
    started: Mapping[str, Any],
    ratios: Sequence[float] = (),
    timed: bool = False,
) -> dict[Path, Metrics]:
    """Fit a method and write the run; metrics by run folder. For several MAC ratios each has a folder `macs-RATIO`.

    `started` says what the run is made from; an interrupted one goes on only if it is the same. Finished runs are left
    alone: also where the method can't reach another ratio, which BudgetError tells once all were tried. `timed`: the
    metrics say what speed-up to expect on the device of the task.
    """
    if not getattr(method, "plans", True):  # before any work
        raise RunError(WITHOUT_A_PLAN)
    memory, sweep = folder / SEARCH, len(ratios) > 1
    if not sweep and _written(folder):
        return {folder: finished(folder, started)}
    metrics: dict[Path, Metrics] = {}
    missed: dict[str, BudgetError] = {}
    with working(folder, SEARCH, started, lambda: begun(memory), task.progress) as told:
        about = {name: value for name, value in started.items() if name != SOURCE}
        own = replace(task, cache=Cache(memory, about), progress=told)
        if not sweep:
            return {folder: _make(own, method, folder, started, timed)}
        for ratio in sorted(ratios, reverse=True):
            at, run = own.at(replace(task.target, macs=ratio)), folder / run_name(ratio)
            try:
                metrics[run] = _make(at, method, run, dict(started) | {"target": at.target.as_dict()}, timed)
            except BudgetError as error:
                missed[run.name] = error
        if not metrics:
            raise next(iter(missed.values()))
        if not missed:
            write_json(folder / SWEEP, {"runs": {run.name: found for run, found in metrics.items()}})
    if missed:
        done, first = ", ".join(run.name for run in metrics), next(iter(missed.values()))
        raise BudgetError(f"{folder} holds {done}, but {', '.join(missed)} can't be had: {first}")
    return metrics


def _make(task: Task, method: Any, folder: Path, started: Mapping[str, Any], timed: bool) -> Metrics:
    """Fit, and write what was found; a run that is whole already is left alone."""
    if _written(folder):
        return finished(folder, started)
    start, network = time.monotonic(), task.host.model
    found = fit(method, task)
    seconds = round(time.monotonic() - start, 1)
    if found.plan is None:
        raise RunError(WITHOUT_A_PLAN)
    slim = apply(network, found.plan, found.weights)
    known = {"peak_memory_gib": round(peak_memory_gib(), 2), "seconds": seconds, "skipped_images": task.images.skipped}
    metrics = measure_plan(network, found.plan) | known
    if timed:
        metrics |= expected_speedup(task, slim, found.plan)
    tuned = set(found.weights) - own_keys(slim)  # a later recovery needs the original network as its teacher
    write_run(slim, folder, started, metrics, teacher=network if tuned else None)
    return metrics


def _written(folder: Path) -> bool:
    """Whether a run was written here, whole or damaged: its manifest comes first, its plan last."""
    return any(os.path.lexists(folder / name) for name in (MANIFEST, PLAN))


def finished(folder: Path, started: Mapping[str, Any]) -> Metrics:
    """The metrics of a run that is whole; RunError when it is damaged or was made from something else."""
    if not (folder / PLAN).exists():  # it waits for its place since a kill, or is missing
        check_files(folder, (PLAN,), ())
    slim = load(folder)
    check_started(folder, folder / CONFIG, started)
    shutil.rmtree(folder / SEARCH, ignore_errors=True)  # a crash may have come between the plan and this
    return (
        {"seconds": 0.0, "skipped_images": 0} | read_metrics(folder) | measure_plan(slim, SlimPlan.load(folder / PLAN))
    )


def measure_plan(network: nn.Module, plan: SlimPlan) -> Metrics:
    """MACs and tokens of a plan, and the speed-up that it predicts."""
    macs, whole = count_macs(network, plan), host_macs(inspect(network))
    speed = {SPEED: plan.provenance[SPEED]} if SPEED in plan.provenance else {}
    return speed | {
        "method": plan.method,
        "macs": macs,
        "macs_ratio": macs / whole,
        "host_macs": whole,
        "patches_per_block": list(plan.counts),
        "tolerance": plan.provenance.get("tolerance"),
        "errors": plan.provenance.get("errors", {}),
    }


def peak_memory_gib() -> float:
    """The most memory this process has held; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0.0
    import resource

    scale = 2**30 if sys.platform == "darwin" else 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
