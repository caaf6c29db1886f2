"""All that has to be seen on a GPU, in one command of at most nine minutes: every part has a limit and saves its rows.

All parts run beside one another: kernels against the tensor functions that they equal, a search and a recovery by each
method, and the compiling of what is timed. Whoever computes holds a file; a timing waits until nobody else holds it.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.inputs import MODEL, Out, say
from benchmarks.rows import RESULTS

SEARCH_LIMIT, LIMIT = 300, 530  # seconds, of a search with its recovery, and of every part
LARGE = ("--model", "vit_small_patch14_dinov2.lvd142m", "--img-size", "518", "--batch-sizes", "32")  # 1,369 patches
SEARCHED = "merge,merge:blocks=none,cover,drop,predict,ps,tome,evit"
TIMED = "merge,merge:blocks=none,cover,drop,predict,tome,evit"
# Compiling for other GPUs needs none, and `make test` does it.
KERNELS = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not need_not_be_here", "tests/kernels"]


@dataclass(frozen=True)
class Part:
    """A command with a limit of its own; one that times waits by itself until nobody else computes."""

    name: str
    words: list[str]
    seconds: float = LIMIT
    times: bool = False


def gpu(
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="Weights of --model.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Unlabelled images; without them nothing is searched.")
    ] = None,
    val: Annotated[str | None, typer.Option("--val", help="Labelled images.")] = None,
    model: Annotated[str, typer.Option("--model")] = MODEL,
    images: int = 256,
    recover: Annotated[int, typer.Option("--recover", help="Epochs of each recovery.")] = 2,
    device: Annotated[str, typer.Option("--device")] = "cuda",
    seconds: Annotated[float, typer.Option("--seconds", help="Of timing, for each model and mode.")] = 0.5,
    out: Out = RESULTS,
) -> None:
    """Kernels, searches, recoveries, and the speed of every method at batch 1 and 256 and at 518 pixels."""
    start, logs = time.monotonic(), out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    turn, where = logs / "turn", ["--device", device, "--out", str(out)]
    parts = timings(model, [*where, "--methods", TIMED, "--seconds", str(seconds), "--turn", str(turn)])
    if data is not None and val is not None and checkpoint is not None:
        given = ["--checkpoint", str(checkpoint), "--data", data, "--val", val, "--images", str(images)]
        parts += searches([*given, "--model", model, "--recover", str(recover), *where])
    run([Part("kernels", [sys.executable, *KERNELS], SEARCH_LIMIT), *parts], logs, turn)
    say(f"All parts took {time.monotonic() - start:.0f} s.")


def command(name: str, *words: str) -> list[str]:
    """A benchmark as a command of its own."""
    return [sys.executable, "-m", "benchmarks", name, *words]


def searches(words: list[str]) -> list[Part]:
    """A search and a recovery by each method."""
    return [
        Part(f"accuracy-{one.replace(':', '-')}", command("accuracy", *words, "--methods", one), SEARCH_LIMIT)
        for one in SEARCHED.split(",")
    ]


def timings(model: str, words: list[str]) -> list[Part]:
    """What is timed: models are compiled beside everything else, and then wait for their turn."""
    small = ("--model", model, "--batch-sizes")
    cases = {"256": (*small, "256"), "1": (*small, "1"), "518px": LARGE}
    return [Part(f"speed-{name}", command("speed", *own, *words), times=True) for name, own in cases.items()]


def run(parts: Sequence[Part], logs: Path, turn: Path) -> None:
    """Run commands at once, each until its limit, each with a log of its own."""
    start, running = time.monotonic(), []
    for part in parts:
        with (logs / f"{part.name}.log").open("w") as log, turn.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_SH)  # the process holds it as long as it lives
            keep = () if part.times else (held.fileno(),)
            running.append((part, subprocess.Popen(part.words, stdout=log, stderr=subprocess.STDOUT, pass_fds=keep)))
    while running:
        for part, process in list(running):
            taken = time.monotonic() - start
            code = process.poll()
            if code is None and taken < part.seconds:
                continue
            process.kill()
            process.wait()
            say(f"{part.name}: {'stopped' if code is None else f'exit code {code}'} after {taken:.0f} s")
            running.remove((part, process))
        time.sleep(0.2)
