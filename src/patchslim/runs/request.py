"""What is asked of a recovery of a run folder, and whether it can be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchslim.errors import RunError
from patchslim.files import check_same, read_json
from patchslim.recover.checkpoint import STATE
from patchslim.runs.store import METRICS, PLAN, RECOVERY, holds_run, read_config


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
    read_json(request.run / METRICS, RunError, "run's metrics")  # before any work: the report goes there
    folder = request.folder
    if request.resume and request.again:
        raise RunError("--resume goes on with a recovery, --again starts over; give one of them.")
    if request.out is not None and request.out.resolve() != request.run.resolve():
        _check_copy(request)
    if request.copies or request.resume or request.again:
        return
    if request.interrupted:
        raise RunError(f"{folder} has an interrupted recovery; go on with --resume, or start over with --again.")
    if RECOVERY in read_config(folder):
        raise RunError(f"{folder} is recovered already; recover it further with --again.")


def _check_copy(request: Request) -> None:
    folder = request.folder
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        raise RunError(f"{folder} is no folder; choose another with --out.")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / PLAN).exists():
        what = "an unfinished run" if holds_run(folder) else "something else than a run"
        raise RunError(f"{folder} holds {what}; choose another folder with --out.")
    if not (request.resume or request.again):
        raise RunError(f"{folder} already holds a run; go on with --resume, or choose another folder with --out.")
    if (folder / PLAN).read_bytes() != (request.run / PLAN).read_bytes():
        raise RunError(f"{folder} holds another run than {request.run}; choose another folder with --out.")


def finished(request: Request, started: Mapping[str, Any]) -> dict[str, Any] | None:
    """The report of a recovery that is done and asked to go on; None where there is something to do."""
    if request.copies or not request.resume or request.interrupted:
        return None
    folder = request.folder
    known = read_config(folder).get(RECOVERY)
    if not isinstance(known, dict):
        return None
    check_same(known, started, f"The recovery of {folder}", "start over with --again")
    report = read_json(folder / METRICS, RunError, "run's metrics").get(RECOVERY)
    if not isinstance(report, dict):
        raise RunError(f"{folder / METRICS} is damaged; the model itself is whole and can be loaded.")
    return report
