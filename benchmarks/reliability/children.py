"""A command in a process of its own, forked from one that has imported everything and computed nothing.

Starting Python with torch takes seconds, a fork milliseconds. The parent must not have computed with torch: threads
do not survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchslim.errors import PatchslimError

PIPE = 2**20  # bytes of output that a child may leave unread
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
SOON = 0.3  # seconds to say where it hangs
LIBC = ctypes.CDLL(None, use_errno=True)

Action = Callable[[], Any]
Event = tuple[float, Callable[["Child"], None]]  # seconds after the action began, and what happens then


@dataclass(frozen=True)
class Ended:
    """How a child ended; `code` is negative where a signal ended it."""

    code: int
    out: str
    err: str
    seconds: float
    memory: int  # bytes at its peak, with what it shares with its parent
    hung: bool
    answer: Any = None


def patchslim(*words: str) -> None:
    """Call the command line; SystemExit unless it is done."""
    from patchslim.cli.main import main

    sys.argv = ["patchslim", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout.flush()


class Child:
    """A running action: its process, and pipes from its standard output and error."""

    def __init__(self, action: Action, folder: Path, memory: int = 0) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.folder, self.texts = folder, [b"", b"", b""]
        pipes = [os.pipe() for _ in range(3)]  # output, error, and a byte when the action begins, then its answer
        self.ends = [end for end, _ in pipes]
        for end in self.ends:
            os.set_blocking(end, False)
            with contextlib.suppress(OSError):
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE)
        self.pid = os.fork()
        if self.pid == 0:
            _become(action, folder, memory, [end for _, end in pipes])
        for _, end in pipes:
            os.close(end)
        select.select(self.ends[2:], [], [])
        os.read(self.ends[2], 1)
        self.start, self.handle = time.monotonic(), os.pidfd_open(self.pid)

    def send(self, sign: int) -> None:
        """A signal to the child and to what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, sign)

    def fill_disk(self) -> None:
        """From now on no file of the child can grow: what a full disk is to it."""
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def running(self, until: float) -> bool:
        """Wait until so many seconds after the start; whether the child still runs then."""
        while True:
            left = self.start + until - time.monotonic()
            ready, _, _ = select.select([self.handle, *self.ends], [], [], max(left, 0))
            self._drain()
            if self.handle in ready:
                return False
            if left <= 0:
                return True

    def end(self, limit: float, events: Sequence[Event] = ()) -> Ended:
        """Wait for the end, with events on the way; after `limit` seconds it is killed and counts as hung."""
        for moment, act in sorted(events, key=lambda event: event[0]):
            if not self.running(moment):
                break
            act(self)
        hung = self.running(limit)
        if hung:
            self.send(signal.SIGUSR1)  # it says where
            self.running(time.monotonic() - self.start + SOON)
        self.send(signal.SIGKILL)  # what it started goes with it
        _, status, used = os.wait4(self.pid, 0)
        seconds = time.monotonic() - self.start
        self._drain()
        for end in (*self.ends, self.handle):
            os.close(end)
        out, err, answer = (text.decode(errors="replace") for text in self.texts)
        code = os.waitstatus_to_exitcode(status)
        found = json.loads(answer) if answer and code == 0 else None
        return Ended(code, out, err, seconds, used.ru_maxrss * 1024, hung, found)

    def _drain(self) -> None:
        """Read what there is, but not all the time from a pipe that has closed."""
        for number, end in enumerate(self.ends):
            with contextlib.suppress(BlockingIOError):
                while more := os.read(end, PIPE):
                    self.texts[number] += more


def run(action: Action, folder: Path, limit: float, memory: int = 0) -> Ended:
    """An action from begin to end, in a folder; `memory` bounds what it may take more than its parent has."""
    return Child(action, folder, memory).end(limit)


def _become(action: Action, folder: Path, memory: int, ends: Sequence[int]) -> None:
    """What the child does; it never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(sign, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(ends[0], 1)
        os.dup2(ends[1], 2)
        sys.stdout, sys.stderr = (os.fdopen(end, "w", 1, errors="backslashreplace") for end in (1, 2))
        faulthandler.register(signal.SIGUSR1)
        os.chdir(folder)
        if memory:
            resource.setrlimit(resource.RLIMIT_DATA, (_private() + memory,) * 2)
        os.write(ends[2], b"!")
        code = _code(action, ends[2])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _private() -> int:
    """Bytes of memory that count towards the limit by now."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))


def _code(action: Action, end: int) -> int:
    """The exit code, as the interpreter and the command line have it."""
    try:
        answer = action()
        if answer is not None:
            os.write(end, json.dumps(answer).encode())  # not to a file: the disk may be full
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except PatchslimError as error:  # from Python: the command line prints the same
        print("patchslim: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
