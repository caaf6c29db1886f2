"""How a command ends on Ctrl-C (SIGINT) and on SIGTERM: in one line, soon, whatever it is doing.

The first signal raises an exception, so that files are closed, unfinished ones removed and folders tidied. Python
raises it only between two steps of its own, and a long call into a library would delay it. So a thread, which the
system tells of every signal at once, ends the process where that takes too long, or when a second signal comes.
"""

import math
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

GRACE, SHORT_GRACE = 10.0, 2.0  # seconds between a signal and the end; where it comes during an import
AGAIN = 0.5  # a signal that comes so soon after another is the same one, sent to the process and to its group
SHOW_CURSOR = b"\x1b[?25h"  # which a progress bar hides
WORDS = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated"}


class Stopped(KeyboardInterrupt):
    """Raised where a signal comes. Python remembers a KeyboardInterrupt itself, and may then end by SIGINT, not so."""


def importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: what it is written in may swallow the exception."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


class Signals:
    """Both signals while a command runs. Only a program's main thread can be told of them: others go without."""

    def __init__(self, advice: str = "") -> None:
        self.advice = advice  # how to go on
        self.number: int | None = None  # of the signal that came
        self.said = False  # whether a user has been told
        self._main = threading.current_thread() is threading.main_thread()

    @property
    def sentence(self) -> str:
        """What to say of the signal."""
        word = WORDS[signal.Signals(self.number or signal.SIGINT)]
        return f"{word}; {self.advice}." if self.advice else f"{word}."

    @property
    def code(self) -> int:
        """The exit code that a shell expects."""
        return 128 + (self.number or signal.SIGINT)

    def __enter__(self) -> Self:
        if self._main:
            for number in WORDS:
                signal.signal(number, self._came)
            self._ours, self._systems = socket.socketpair()
            self._systems.setblocking(False)
            signal.set_wakeup_fd(self._systems.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, daemon=True).start()
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._let_go)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._main and self.number is None:  # after a signal the process is watched to its very end
            for number in WORDS:  # nothing is left to tidy
                signal.signal(number, lambda number, frame: self._leave(number))
            signal.set_wakeup_fd(-1)
            self._systems.close()
            self._main = False

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            if importing(frame):
                timer = threading.Timer(SHORT_GRACE, self._leave, (number,))
                timer.daemon = True
                timer.start()
            sys.unraisablehook = lambda _: None  # where it is raised in what can't raise, Python would print it
            raise Stopped

    def _next(self, until: float = math.inf) -> int | None:
        """The next of the signals; None where no more can come. TimeoutError when time is up."""
        while True:
            self._ours.settimeout(None if until == math.inf else max(until - time.monotonic(), 0.001))
            told = self._ours.recv(1)
            if not told or told[0] in WORDS:
                return told[0] if told else None

    def _watch(self) -> None:
        first = self._next()
        if first is not None:
            start = time.monotonic()
            with suppress(TimeoutError):
                while self._next(start + GRACE) is not None and time.monotonic() < start + AGAIN:
                    pass
            self._leave(first)
        self._ours.close()

    def _leave(self, number: int) -> None:
        """End at once: nothing that is being done is waited for."""
        if self.number is None or not self.said:
            self.number = self.number or number
            cursor = SHOW_CURSOR if os.isatty(2) else b""
            os.write(2, cursor + f"patchslim: {self.sentence}\n".encode())
        os._exit(self.code)

    def _let_go(self) -> None:
        """In a process that reads images: it is ended by this one, which alone hears Ctrl-C."""
        if self._main:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
