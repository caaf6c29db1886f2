"""Commands that run beside one another, each with limits and a log of its own.

Whoever computes holds a file, `turn`; a timing waits until nobody else holds it. So models are compiled beside
everything else, and timed one after the other, alone.
"""

from __future__ import annotations

import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.inputs import say
from benchmarks.speed import mark_of

LOOK = 0.2  # seconds between two looks at what runs


@dataclass(frozen=True)
class Part:
    """A command with limits of its own, in seconds from the start; one that times waits by itself for its turn."""

    name: str
    words: Sequence[str]
    seconds: float
    times: bool = False
    ready: float = math.inf  # until when one that times has to have its models ready, or it would keep others waiting


@dataclass
class Running:
    """A part and its process, which leads a group of its own: compilers start more."""

    part: Part
    process: subprocess.Popen[bytes]
    mark: Path

    def over(self, taken: float) -> str | None:
        """Why it is over, if it is."""
        code = self.process.poll()
        if code is not None:
            return f"exit code {code}"
        if taken >= self.part.seconds:
            return "stopped"
        if taken >= self.part.ready and not self.mark.exists():
            return "stopped, as its models were not ready,"
        return None

    def end(self) -> None:
        """Stop it and all it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.mark.unlink(missing_ok=True)


def benchmark(*words: str) -> list[str]:
    """A benchmark as a command of its own."""
    return [sys.executable, "-m", "benchmarks", *words]


def environment(parts: int) -> dict[str, str]:
    """Each part gets its share of the cores; whatever is set already stays."""
    share = str(max(2, (os.cpu_count() or 1) // max(1, parts)))
    return {"OMP_NUM_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share} | os.environ


def run(parts: Sequence[Part], logs: Path) -> None:
    """Run all parts at once, each until its limit."""
    start, names = time.monotonic(), {part.name for part in parts}
    assert len(names) == len(parts), "parts share a log"
    logs.mkdir(parents=True, exist_ok=True)
    turn = logs / "turn"
    running = [started(part, logs, turn, environment(len(parts))) for part in parts]
    try:
        while running:
            taken = time.monotonic() - start
            for own in list(running):
                why = own.over(taken)
                if why is not None:
                    own.end()
                    say(f"{own.part.name}: {why} after {taken:.0f} s")
                    running.remove(own)
            time.sleep(LOOK)
    finally:
        for own in running:
            own.end()
    say(f"All parts took {time.monotonic() - start:.0f} s.")


def started(part: Part, logs: Path, turn: Path, env: dict[str, str]) -> Running:
    """A part at work."""
    with (logs / f"{part.name}.log").open("w") as log, turn.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # the process holds it as long as it lives
        words = [*part.words, *(("--turn", str(turn)) if part.times else ())]
        process = subprocess.Popen(
            words,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=() if part.times else (held.fileno(),),
            start_new_session=True,
            env=env,
        )
    return Running(part, process, mark_of(turn, process.pid))
