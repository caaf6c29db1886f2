"""All that has to be seen on a GPU, in one command of at most nine minutes: every part has a limit and saves its rows.

Parts that do not time anything run beside one another first: kernels against the tensor functions that they equal,
a search and a recovery by each method, and a pass that fills the compiler's cache. Then everything is timed, alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.inputs import MODEL, Out, say
from benchmarks.rows import RESULTS

LIMIT = 9 * 60  # seconds, of the whole command
LARGE = "vit_small_patch14_dinov2.lvd142m"  # at 518 pixels: 1,369 patches
METHODS = "merge,cover,drop,predict,ps,tome,evit"
TIMED = "merge,merge:blocks=none,cover,drop,predict,tome,evit"


@dataclass(frozen=True)
class Part:
    """A command with a limit of its own."""

    name: str
    words: list[str]
    seconds: float


def gpu(
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="Weights of --model.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Unlabelled images; without them nothing is searched.")
    ] = None,
    val: Annotated[str | None, typer.Option("--val", help="Labelled images.")] = None,
    model: Annotated[str, typer.Option("--model")] = MODEL,
    images: int = 256,
    device: Annotated[str, typer.Option("--device")] = "cuda",
    seconds: Annotated[float, typer.Option("--seconds", help="Of timing, for each model and mode.")] = 0.5,
    out: Out = RESULTS,
) -> None:
    """Kernels, searches, recoveries, and the speed of every method at batch 1 and 256 and at 518 pixels."""
    out.mkdir(parents=True, exist_ok=True)
    start, logs = time.monotonic(), out / "logs"
    logs.mkdir(exist_ok=True)
    beside = [Part("kernels", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels"], 240)]
    own = [sys.executable, "-m", "benchmarks"]
    where = ["--device", device, "--out", str(out)]
    if data is not None and val is not None and checkpoint is not None:
        given = ["--checkpoint", str(checkpoint), "--data", data, "--val", val, "--images", str(images)]
        for method in METHODS.split(","):
            words = [*own, "accuracy", *given, "--model", model, "--methods", method, "--recover", "2", *where]
            beside.append(Part(f"accuracy-{method}", words, 240))
    timings = {
        f"{model}-256": ["--model", model, "--batch-sizes", "256"],
        f"{model}-1": ["--model", model, "--batch-sizes", "1"],
        "518px": ["--model", LARGE, "--img-size", "518", "--batch-sizes", "32,1"],
    }
    timed = ["--methods", TIMED, "--searched", *where]  # with the counts just searched for, where there are any
    speeds = {name: [*own, "speed", *words, *timed] for name, words in timings.items()}
    beside += [Part(f"warm-{name}", [*words, "--warm", "--seconds", "0.01"], 240) for name, words in speeds.items()]
    run_beside(beside, logs)
    for name, words in speeds.items():
        left = LIMIT - (time.monotonic() - start)
        run_beside([Part(f"speed-{name}", [*words, "--seconds", str(seconds)], min(left, 150))], logs)
    say(f"All parts took {time.monotonic() - start:.0f} s.")


def run_beside(parts: list[Part], logs: Path) -> None:
    """Run some commands at once, each until its limit, each with a log of its own."""
    running, start = [], time.monotonic()
    for part in parts:
        log = (logs / f"{part.name}.log").open("w")
        running.append((part, subprocess.Popen(part.words, stdout=log, stderr=subprocess.STDOUT)))
    for part, process in running:
        try:
            code = process.wait(max(0.0, part.seconds - (time.monotonic() - start)))
            say(f"{part.name}: exit code {code} after {time.monotonic() - start:.0f} s")
        except subprocess.TimeoutExpired:
            process.kill()
            say(f"{part.name}: stopped after {part.seconds:.0f} s")
