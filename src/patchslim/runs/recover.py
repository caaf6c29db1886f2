"""Recovering the model of a run folder, in place or in a copy; and going on with a recovery that was interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchslim.data import ImageSource
from patchslim.errors import RunError
from patchslim.events import Listener, silent
from patchslim.files import read_json, write_json
from patchslim.folder import LOCK, LOG, SOURCE, alone, working
from patchslim.hosts.weights import write_weights
from patchslim.recover import RecoverConfig, recover
from patchslim.recover.checkpoint import STATE
from patchslim.runs.request import Request, check_request, finished
from patchslim.runs.store import (
    CONFIG,
    FILES,
    HOST_WEIGHTS,
    METRICS,
    PLAN,
    RECOVERY,
    STEPS_WEIGHTS,
    WEIGHTS,
    load,
    split_weights,
    versions,
)
from patchslim.runs.teacher import load_teacher

VAL = "val.json"
Judge = Callable[[nn.Module], dict[str, Any]]


def recover_run(
    request: Request,
    source: ImageSource,
    config: RecoverConfig,
    device: torch.device,
    listen: Listener = silent,
    judge: Judge | None = None,
) -> dict[str, Any]:
    """Recover a run and put the result in its place, or into a copy; returns the report.

    The run's files are replaced one by one at the end, each at once, so that it can be loaded at any time. `judge`
    measures the model before and after, if given.
    """
    check_request(request)
    started = _started(config, source)
    done = finished(request, started)
    if done is not None:
        return done
    folder, fresh = request.folder, request.copies
    origin, memory = request.run if fresh else folder, folder / RECOVERY
    slim, teacher = load(origin, device), load_teacher(origin, request.teacher)
    if request.again and memory.exists():
        _forget(memory, folder)
    begun, files = (memory / STATE).exists, (*FILES, LOG, PLAN) if fresh else ()
    with working(folder, RECOVERY, started, begun, listen, files=files, advice="start over with --again") as told:
        if fresh:
            _copy(request.run, folder)
        before = _judged(memory / VAL, slim, judge)
        found = recover(slim, teacher, source, config, checkpoint=memory, listen=told)
        report = {"settings": config.as_dict()} | found.report
        if judge is not None:
            report["val"] = {"before": before, "after": judge(found.model)}
        _put(folder, found.model, teacher, report, started | {SOURCE: source.name})
    return report


def _started(config: RecoverConfig, source: ImageSource) -> dict[str, Any]:
    images = {"count": len(source), "fingerprint": source.fingerprint}
    return {"settings": config.as_dict(), "images": images}


def _copy(run: Path, folder: Path) -> None:
    """A run in another folder, the plan last: a folder with a plan is a whole run."""
    for name in (*FILES, LOG, PLAN):
        if (run / name).exists():
            shutil.copyfile(run / name, folder / name)


def _forget(memory: Path, folder: Path) -> None:
    """Start over: what an earlier recovery has learnt goes."""
    with alone(memory, folder):
        for path in memory.iterdir():
            if path.name != LOCK:
                path.unlink()


def _judged(path: Path, slim: nn.Module, judge: Judge | None) -> dict[str, Any] | None:
    """What the judge says of the model that a recovery began with, asked only once."""
    if judge is None:
        return None
    if not path.exists():
        write_json(path, judge(slim))
    return read_json(path, RunError, "recovery's first measurement")


def _put(
    folder: Path, model: nn.Module, teacher: nn.Module, report: Mapping[str, Any], started: Mapping[str, Any]
) -> None:
    """The result in the run's place. If this is interrupted, the recovery's own folder still has it.

    What steps own is written first: the host's weights tell a resumed recovery what it went on from.
    """
    if not (folder / HOST_WEIGHTS).exists():
        write_weights(folder / HOST_WEIGHTS, teacher.state_dict())
    host, steps = split_weights(model)
    if steps:
        write_weights(folder / STEPS_WEIGHTS, steps)
    write_weights(folder / WEIGHTS, host)
    metrics = read_json(folder / METRICS, RunError, "run's metrics")
    write_json(folder / METRICS, metrics | {RECOVERY: dict(report)})
    config = read_json(folder / CONFIG, RunError, "run's config")
    write_json(folder / CONFIG, config | {RECOVERY: dict(started) | {"versions": versions()}})
