"""Many cases beside one another: workers that fork a child per case, and a line of JSON for each."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import patchslim
from benchmarks.reliability.children import DIE_WITH_PARENT, LIBC
from benchmarks.reliability.outcomes import FAILURES
from benchmarks.reliability.subjects import Subject
from patchslim.errors import PatchslimError

# What commands import late: imported once, before any fork. Those that are not installed are left out.
LATE = (
    *("sklearn.datasets", "matplotlib.pyplot", "onnx", "onnxruntime", "onnxscript", "openvino", "torch._dynamo"),
    *("torch.export", "torch.onnx", "torch.utils.checkpoint", "timm.data", "PIL.Image"),
    *("transformers.models.vit.modeling_vit", "transformers.models.dinov2.modeling_dinov2"),
)
CASES = "cases"
KEPT = 20  # folders of failures that each worker keeps
TELL = 60.0  # seconds between two lines for who waits
Found = dict[str, Any]  # what was done in a case, and its outcome
Case = Callable[[int, Path, Path], Found]  # its number, where everything is, and an empty folder
Needed = Callable[[Iterable[int]], list[Subject]]  # what cases of these numbers are about


@dataclass(frozen=True)
class Part:
    """A part of the campaign: its cases by number."""

    name: str
    case: Case
    count: int
    needed: Needed


def import_all() -> None:
    """Everything that a command may import, so that children need not."""
    root = Path(patchslim.__path__[0])
    for path in sorted(root.rglob("*.py")):  # not every room is a package that says so
        parts = path.relative_to(root.parent).with_suffix("").parts
        if not parts[-1].startswith("__"):
            importlib.import_module(".".join(parts))
    for name in LATE:
        with suppress(ImportError):
            importlib.import_module(name)


def run_part(part: Part, work: Path, jobs: int, keep: Path) -> list[Found]:
    """All cases of a part; a worker that dies costs one case."""
    (work / CASES).mkdir(exist_ok=True)
    owners = {_worker(part, work, number, jobs, keep): number for number in range(min(jobs, part.count))}
    told = time.monotonic()
    try:
        while owners:
            if time.monotonic() > told + TELL:
                print(f"{part.name}: {len(read_found(part, work))} of {part.count}", file=sys.stderr, flush=True)
                told = time.monotonic()
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                time.sleep(0.05)
                continue
            number = owners.pop(pid)
            if status:
                _note_death(part, work, number, jobs, status)
                owners[_worker(part, work, number, jobs, keep)] = number
    finally:
        for pid in owners:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return sorted(read_found(part, work), key=lambda own: int(own["number"]))


def read_found(part: Part, work: Path) -> list[Found]:
    """What is known by now."""
    found = []
    for path in (work / CASES).glob(f"{part.name}-*.jsonl"):
        found += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return found


def _done(part: Part, work: Path, worker: int) -> int:
    """How many cases a worker has behind it."""
    path = work / CASES / f"{part.name}-{worker}.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _write(part: Part, work: Path, worker: int, found: Found) -> None:
    with (work / CASES / f"{part.name}-{worker}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


def _note_death(part: Part, work: Path, worker: int, jobs: int, status: int) -> None:
    number = worker + _done(part, work, worker) * jobs
    about = {"group": "the fuzzer itself", "outcome": "crash", "said": f"the worker ended with {status}"}
    _write(part, work, worker, {"number": number, "seconds": 0.0} | about)


def _worker(part: Part, work: Path, worker: int, jobs: int, keep: Path) -> int:
    """Fork one; it takes every so-manieth case, from where one before it came to."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        gc.freeze()  # children's collections leave these pages shared
        for number in range(worker + _done(part, work, worker) * jobs, part.count, jobs):
            _write(part, work, worker, one(part, number, work, keep))
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def one(part: Part, number: int, work: Path, keep: Path) -> Found:
    """One case in a folder of its own, which is kept where something failed."""
    place, start = work / CASES / f"{part.name}-{number}", time.monotonic()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        found = part.case(number, work, place)
    except Exception:
        found = {"group": "the fuzzer itself", "outcome": "crash", "said": traceback.format_exc()}
    if found["outcome"] in FAILURES and len(list(keep.glob(f"{part.name}-*"))) < KEPT:
        keep.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            shutil.move(place, keep / place.name)
    shutil.rmtree(place, ignore_errors=True)
    return {"number": number} | found | {"whole_seconds": round(time.monotonic() - start, 3)}


def in_parallel(actions: Sequence[Callable[[], None]], jobs: int) -> None:
    """Run some actions, each in a process of its own; the first that fails ends it all."""
    left, running = list(actions), set[int]()
    while left or running:
        while left and len(running) < jobs:
            action = left.pop(0)
            pid = os.fork()
            if pid == 0:
                _forked(action)
            running.add(pid)
        pid, status = os.wait()
        running.discard(pid)
        if status:
            raise PatchslimError("What the cases are about can't be made; the reason stands above.")


def _forked(action: Callable[[], None]) -> None:
    code = 1
    try:
        LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        action()
        code = 0
    except Exception as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(code)
