"""The life cycle of a folder that long work is done in: whose it is, what was started there, how it is gone on with.

Searches, sweeps, recoveries and comparisons all live by it. Work keeps what it found out in a `memory`: a folder within
the folder, or the folder itself. A killed process leaves its memory behind, and the same command resumes from it.
"""

import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from patchslim.errors import BudgetError, PatchslimWarning, RunError
from patchslim.events import Event, Listener, silent
from patchslim.files import UNFINISHED, check_same, hold, read_json, remove_unfinished, write_json
from patchslim.version import __version__

STARTED, LOCK, LOG = "started.json", "lock", "log.jsonl"
SOURCE = "source"  # where images lay; their fingerprint, not the place, decides whether they are the same
VERSIONS = "versions"  # beside what was started: the packages that it was started with
ITSELF = "."  # a memory that is the folder itself, and stays when the work is done
OTHERWISE = "resume with the same, or choose another folder with --out"
ATTEMPTS = 100  # at making a folder that other processes remove again


def taken(folder: Path) -> bool:
    """Whether there is something in a folder; RunError where it is no folder at all."""
    if folder.is_symlink() and not folder.exists():
        raise RunError(f"{folder} is a link to nowhere; choose another folder with --out.")
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another folder with --out.")
    return bool(names_in(folder))


def names_in(folder: Path) -> set[str]:
    """What lies in a folder, if there is one, less what killed processes were writing."""
    return {path.name for path in folder.iterdir() if not UNFINISHED.fullmatch(path.name)} if folder.is_dir() else set()


def blank(folder: Path, memory: str, worth: Callable[[], bool], files: Sequence[str] = (LOG,)) -> bool:
    """Whether a folder holds nothing but what work leaves there that was killed before it had found anything.

    `memory`, `worth` and `files` are those of `working`.
    """
    if not taken(folder):
        return True
    begun, ours = (folder / memory / STARTED).exists(), {STARTED, LOCK} if memory == ITSELF else {memory}
    left_behind = names_in(folder) <= {*ours, *(files if begun else (LOG,))}
    return left_behind and not _of_others(folder / memory) and not worth()


def _of_others(own: Path) -> bool:
    """Whether there is something in the place of a memory, and no work of ours that was begun there."""
    return not (own / STARTED).exists() and bool(names_in(own) - {LOCK, LOG})


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
    folder that was blank also `files`, and the folder if it was made here. Success removes the memory.
    """
    own, keeps = folder / memory, memory == ITSELF
    with alone(own, folder) as made:  # nobody else works here while it is decided what may go
        if _of_others(own):
            raise RunError(f"{own} can't be resumed: its {STARTED} is missing; remove it and start again.")
        remove_unfinished(folder)
        fresh, begun, before = blank(folder, memory, worth, files), (own / STARTED).exists(), names_in(folder)
        if worth():
            check_started(folder, own / STARTED, started, advice)
            check_versions(folder, own / STARTED, advice)
        elif not keeps:
            _empty(own)  # of what a killed process left unfinished
        try:
            write_json(own / STARTED, {**started, VERSIONS: versions()})
            yield logged(folder / LOG, listen)
        except BaseException as error:
            if not worth() or (isinstance(error, BudgetError) and not keeps):  # what can't be reached never will be
                if fresh and names_in(folder) <= {STARTED, LOCK, memory, *files}:  # no results lie in it
                    _remove(folder / name for name in files if name not in before or (begun and name != LOG))
                if fresh or not keeps:
                    _forget(own, keeps)
                if made:
                    with suppress(OSError):  # something else lies in it
                        folder.rmdir()
            raise
        if not keeps:
            _forget(own, keeps)


def _empty(own: Path) -> None:
    """Remove what a memory holds, less what says that it is one."""
    _remove(path for path in own.iterdir() if path.name not in (STARTED, LOCK))


def _forget(own: Path, keeps: bool) -> None:
    """Remove a memory, the lock last: from then on another process may work here, and nothing of its own goes."""
    if not keeps:
        _empty(own)
    _remove((own / STARTED, own / LOCK))
    if not keeps:
        with suppress(OSError):  # another process works here already
            own.rmdir()


def _remove(paths: Iterable[Path]) -> None:
    """Remove files and folders, as far as it goes."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def check_started(folder: Path, path: Path, started: Mapping[str, Any], advice: str = OTHERWISE) -> None:
    """Raise RunError when a folder was started with another model, other settings, weights or images."""
    before = read_json(path, RunError, "run's settings")
    now = {name: value for name, value in started.items() if name != SOURCE}
    check_same(before, now, str(folder), advice)


def versions() -> dict[str, str]:
    """What decides how work is done, patchslim first."""
    import timm  # here, so that looking at a folder does not wait for them
    import torch

    return {"patchslim": __version__, "torch": torch.__version__, "timm": timm.__version__}


def check_versions(folder: Path, path: Path, advice: str = OTHERWISE) -> None:
    """Raise RunError when a folder was started with another patchslim; warn when torch or timm were others."""
    known = read_json(path, RunError, "run's settings").get(VERSIONS)
    before = known if isinstance(known, dict) else {}
    for name, now in versions().items():
        if before.get(name) != now:
            told = f"{folder} was started with {name} {before.get(name, 'of another version')}, and this is {now}"
            if name == "patchslim":  # half of what is found would come from other rules
                raise RunError(f"{told}; {advice}.")
            warnings.warn(f"{told}; what is found from here on may differ a little.", PatchslimWarning, stacklevel=2)


@contextmanager
def alone(own: Path, folder: Path) -> Iterator[bool]:
    """Keep a second process out of a folder while one is at work; the system frees it if that one dies.

    Gives whether the folder was made here. Who is kept out has changed nothing that was there.
    """
    file, made = _locked(own, folder)
    with file:
        yield made


def _locked(own: Path, folder: Path) -> tuple[IO[bytes], bool]:
    """The lock of a memory, held, both made where there are none; and whether the folder was made too."""
    made = False
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                made = True
            own.mkdir(exist_ok=True)
            file = (own / LOCK).open("ab+", buffering=0)
            if hold(file) is False:
                file.close()
                raise RunError(f"Another process is working on {folder}; wait for it or choose another folder.")
            if os.path.samestat(os.fstat(file.fileno()), (own / LOCK).stat()):
                return file, made
            file.close()  # the lock of a process that was done, and removed it
        except (FileNotFoundError, FileExistsError):  # a process that failed removed what it had made, meanwhile
            if attempt == ATTEMPTS:
                raise
    raise RunError(f"Other processes make and remove {folder} all the time; wait for them or choose another folder.")


def logged(log: Path, listen: Listener) -> Listener:
    """A listener that also writes every event as a line of JSON, all but single steps."""
    if log.exists() and not log.is_file():  # writing to a pipe waits until somebody reads it
        raise RunError(f"{log} is no plain file, so no log can be written there; remove it.")
    start = time.monotonic()

    def write(event: Event) -> None:
        if event["event"] != "step":
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"seconds": round(time.monotonic() - start, 3)} | dict(event)) + "\n")
        listen(event)

    return write
