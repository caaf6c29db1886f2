"""The life cycle of a folder that long work is done in: whose it is, what was started there, how it is gone on with.

Searches, sweeps, recoveries and comparisons all live by it. Work keeps what it found out in a `memory`: a folder within
the folder, or the folder itself. A killed process leaves its memory behind, and the same command resumes from it.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from patchslim.errors import BudgetError, RunError
from patchslim.events import Event, Listener, silent
from patchslim.files import check_same, read_json, write_json

STARTED, LOCK, LOG = "started.json", "lock", "log.jsonl"
SOURCE = "source"  # where images lay; their fingerprint, not the place, decides whether they are the same
ITSELF = "."  # a memory that is the folder itself, and stays when the work is done
OTHERWISE = "resume with the same, or choose another folder with --out"


def taken(folder: Path) -> bool:
    """Whether there is something in a folder; RunError where it is no folder at all."""
    if folder.is_symlink() and not folder.exists():
        raise RunError(f"{folder} is a link to nowhere; choose another folder with --out.")
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another folder with --out.")
    return folder.exists() and any(folder.iterdir())


def check_folder(folder: Path, resume: bool, holds: Callable[[Path], bool], what: str = "run") -> None:
    """Raise RunError unless a run (or another `what`) may be written, or gone on with, in this folder."""
    if not taken(folder):
        return
    if not holds(folder):
        raise RunError(f"{folder} is not empty and holds no {what}; choose another folder with --out.")
    if not resume:
        raise RunError(f"{folder} already holds a {what}; go on with --resume, or choose another folder with --out.")


@contextmanager
def working(
    folder: Path,
    memory: str,
    started: Mapping[str, Any],
    worth: Callable[[], bool],
    listen: Listener = silent,
    *,
    files: Sequence[str] = (LOG,),
    advice: str = OTHERWISE,
) -> Iterator[Listener]:
    """Work in a folder, alone, on what was started there and nothing else; gives a listener that also writes the log.

    `worth` says whether there is something to go on with. Where there is not, a failure removes the memory, from a
    folder that was empty also `files`, and the folder if it was made here. Success removes the memory.
    """
    own = folder / memory
    made, empty, keeps = not folder.exists(), not taken(folder), memory == ITSELF
    own.mkdir(parents=True, exist_ok=True)
    with alone(own, folder):
        if (own / STARTED).exists():
            check_started(folder, own / STARTED, started, advice)
        elif worth():  # of a run only its memory may go
            raise RunError(f"{own} can't be resumed: its {STARTED} is missing; remove it and start again.")
        try:
            write_json(own / STARTED, started)
            yield logged(folder / LOG, listen)
        except BaseException as error:
            if not worth() or (isinstance(error, BudgetError) and not keeps):  # what can't be reached never will be
                if not keeps:
                    shutil.rmtree(own, ignore_errors=True)
                for name in (*((STARTED, LOCK) if keeps else ()), *(files if empty else ())):
                    (folder / name).unlink(missing_ok=True)
                if made:
                    with suppress(OSError):  # results of something else lie in it
                        folder.rmdir()
            raise
        if not keeps:
            shutil.rmtree(own)


def check_started(folder: Path, path: Path, started: Mapping[str, Any], advice: str = OTHERWISE) -> None:
    """Raise RunError when a folder was started with another model, other settings, weights or images."""
    before = read_json(path, RunError, "run's settings")
    now = {name: value for name, value in started.items() if name != SOURCE}
    check_same(before, now, str(folder), advice)


@contextmanager
def alone(own: Path, folder: Path) -> Iterator[None]:
    """Keep a second process out of a folder while one is at work; the system frees it if that one dies."""
    with (own / LOCK).open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except BlockingIOError:
            raise RunError(f"Another process is working on {folder}; wait for it or choose another folder.") from None
        yield


def logged(log: Path, listen: Listener) -> Listener:
    """A listener that also writes every event as a line of JSON, all but single steps."""
    start = time.monotonic()

    def write(event: Event) -> None:
        if event["event"] != "step":
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"seconds": round(time.monotonic() - start, 3)} | dict(event)) + "\n")
        listen(event)

    return write
