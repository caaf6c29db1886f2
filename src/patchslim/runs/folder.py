"""What making and recovering a run have in common: whose folder it is, who works on it, what is written down."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patchslim.errors import BudgetError, RunError
from patchslim.files import check_same, read_json, write_json
from patchslim.search.ledger import LEDGER
from patchslim.search.topdown import Listener
from patchslim.slim.store import PLAN, SEARCH, holds_run

STARTED, LOG = "started.json", "log.jsonl"
SOURCE = "source"  # where the images lay; the fingerprint, not the place, decides whether they are the same
OTHERWISE = "resume with the same, or choose another folder with --out"


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


@contextmanager
def alone(folder: Path, place: str) -> Iterator[None]:
    """Keep a second process out of a folder while one is at work; the system frees it if that one dies."""
    with (folder / place / "lock").open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except BlockingIOError:
            raise RunError(f"Another process is working on {folder}; wait for it or choose another folder.") from None
        yield


@contextmanager
def searching(folder: Path, started: Mapping[str, Any], listen: Listener) -> Iterator[Listener]:
    """Search in a folder, alone, for what was started there and nothing else; gives the listener that also logs.

    What was found out stays for `--resume`; a new folder goes again when nothing was found, or nothing can be.
    """
    fresh = not folder.exists()
    try:
        (folder / SEARCH).mkdir(parents=True, exist_ok=True)
        with alone(folder, SEARCH):
            check_started(folder, folder / SEARCH / STARTED, started)
            write_json(folder / SEARCH / STARTED, started)
            yield logged(folder / LOG, listen)
            shutil.rmtree(folder / SEARCH)
    except BaseException as error:
        useless = isinstance(error, BudgetError) or not (folder / SEARCH / LEDGER).exists()
        if fresh and folder.exists() and useless and not (folder / PLAN).exists():
            shutil.rmtree(folder)
        raise


def check_started(folder: Path, path: Path, started: Mapping[str, Any]) -> None:
    """Raise RunError when the run was started with another model, other settings, weights or images."""
    if not path.exists():
        if (folder / SEARCH / LEDGER).exists():
            raise RunError(f"{folder} can't be resumed: its {STARTED} is missing; remove it and start again.")
        return
    before = read_json(path, RunError, "run's settings")
    now = {name: value for name, value in started.items() if name != SOURCE}
    check_same(before, now, str(folder), OTHERWISE)


def logged(log: Path, listen: Listener) -> Listener:
    """A listener that also writes every event as a line of JSON, all but single steps."""
    start = time.monotonic()

    def write(event: Mapping[str, Any]) -> None:
        if event["event"] != "step":
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"seconds": round(time.monotonic() - start, 3)} | dict(event)) + "\n")
        listen(event)

    return write
