"""Recovering the model of a run folder, in place or in a copy; and going on with a recovery that was interrupted."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchslim.data import ImageSource
from patchslim.errors import RunError
from patchslim.events import Listener, silent
from patchslim.files import check_same, digest, is_as, read_sealed, replacing, write_sealed
from patchslim.folder import LOCK, LOG, SOURCE, alone, blank, working
from patchslim.recover import RecoverConfig, recover
from patchslim.recover.checkpoint import STATE
from patchslim.runs.manifest import MANIFEST
from patchslim.runs.store import (
    FILES,
    METRICS,
    PLAN,
    RECOVERY,
    check_run,
    holds_run,
    load,
    load_teacher,
    put_result,
    read_config,
    read_metrics,
)

VAL = "val.json"
COPIED = (*FILES, LOG, MANIFEST, PLAN)  # the plan goes last into a copy: a folder with a plan is a whole run
Judge = Callable[[nn.Module], dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """Which run to recover and where to; `teacher` has the original weights where the run has not."""

    run: Path
    out: Path | None = None
    teacher: Path | None = None
    resume: bool = False
    again: bool = False

    @property
    def folder(self) -> Path:
        """The run folder that the result goes to."""
        return self.out or self.run

    @property
    def copies(self) -> bool:
        """Whether that folder still has to be made."""
        return not (self.folder / PLAN).exists()

    @property
    def interrupted(self) -> bool:
        """Whether a recovery of it was begun."""
        return (self.folder / RECOVERY / STATE).exists()


def check_request(request: Request) -> None:
    """Raise RunError unless the run can be recovered as asked."""
    read_config(request.run)
    read_metrics(request.run)  # before any work: the report goes there
    folder = request.folder
    if request.resume and request.again:
        raise RunError("--resume goes on with a recovery, --again starts over; give one of them.")
    if folder.resolve() != request.run.resolve():
        _check_copy(request)
    if request.copies or request.resume or request.again:
        return
    if request.interrupted:
        raise RunError(f"{folder} has an interrupted recovery; go on with --resume, or start over with --again.")
    if read_config(folder).get(RECOVERY, {}).get("changed", False):
        raise RunError(f"{folder} is recovered already; recover it further with --again.")


def _check_copy(request: Request) -> None:
    folder = request.folder
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        raise RunError(f"{folder} is no folder; choose another with --out.")
    if request.copies and blank(folder, RECOVERY, lambda: request.interrupted, COPIED):
        return
    if request.copies:
        what = "an unfinished run" if holds_run(folder) else "something else than a run"
        raise RunError(f"{folder} holds {what}; choose another folder with --out.")
    if not (request.resume or request.again):
        raise RunError(f"{folder} already holds a run; go on with --resume, or choose another folder with --out.")
    if not is_as(folder / PLAN, digest(request.run / PLAN)):
        raise RunError(f"{folder} holds another run than {request.run}; choose another folder with --out.")


def recover_run(
    request: Request,
    source: ImageSource,
    config: RecoverConfig,
    device: torch.device,
    listen: Listener = silent,
    judge: Judge | None = None,
) -> dict[str, Any]:
    """Recover a run and put the result in its place, or into a copy; returns the report.

    The run's files are replaced together at the end, so that it can be loaded at any time. `judge` measures the model
    before and after, if given.
    """
    check_request(request)
    images = {"count": len(source), "fingerprint": source.fingerprint}
    started = {"settings": config.decisive(), "images": images}
    done = _finished(request, started)
    if done is not None:
        return done
    folder, fresh = request.folder, request.copies
    origin, memory = request.run if fresh else folder, folder / RECOVERY
    slim, teacher = load(origin, device), load_teacher(origin, request.teacher)
    if request.again and memory.exists():
        with alone(memory, folder):  # what an earlier recovery has learnt goes
            for path in memory.iterdir():
                if path.name != LOCK:
                    path.unlink()
    begun, files = (memory / STATE).exists, COPIED if fresh else ()
    with working(folder, RECOVERY, started, begun, listen, files=files, advice="start over with --again") as told:
        if fresh and not request.copies:  # another process was as fast
            raise RunError(f"{folder} already holds a run; go on with --resume, or choose another folder with --out.")
        for name in files:
            if (request.run / name).exists():
                with replacing(folder / name) as draft:
                    shutil.copyfile(request.run / name, draft)
        before = None
        if judge is not None:
            if not (memory / VAL).exists():  # asked only once, however often it is interrupted
                write_sealed(memory / VAL, judge(slim))
            before = read_sealed(memory / VAL, RunError, "recovery's first measurement")
        found = recover(slim, teacher, source, config, checkpoint=memory, listen=told)
        report = {"settings": config.as_dict()} | found.report
        if judge is not None:
            report["val"] = {"before": before, "after": judge(found.model)}
        put_result(folder, found.model, teacher, report, started | {SOURCE: source.name})
    return report


def _finished(request: Request, started: Mapping[str, Any]) -> dict[str, Any] | None:
    """The report of a recovery that is done and asked to go on; None where there is something to do."""
    folder = request.folder
    if request.copies or not request.resume or request.interrupted:
        return None
    check_run(folder)
    known = read_config(folder).get(RECOVERY)
    if known is None:
        return None
    if not known["changed"] and any(known.get(name) != value for name, value in started.items()):
        return None  # it learnt nothing, so there is nothing to go on with and nothing to start over
    check_same(known, started, f"The recovery of {folder}", "start over with --again")
    report = read_metrics(folder).get(RECOVERY)
    if not isinstance(report, dict):
        raise RunError(f"{folder / METRICS} has no report of the recovery; start over with --again.")
    return report
