"""All that has to be seen on a GPU, in commands of at most nine minutes each: every part has limits and saves its rows.

python -m benchmarks gpu small --tome TOME              speed at 224 pixels, batch 1 and 256, at 57 % of the MACs
python -m benchmarks gpu large --tome TOME              speed of larger models and images; kernels' tests
python -m benchmarks gpu accuracy --data … --val … …    searches at three ratios, top-1, recoveries
python -m benchmarks gpu picture --tome TOME            speed at those ratios, for docs/throughput.png
python -m benchmarks gpu asked --checkpoint … --data …  searches for a speed-up; a training step's speed
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.inputs import BASE, DINO, DINO_LARGE, LARGE, MODEL, PROMISED, SMALL, Out, Weights
from benchmarks.parts import Part, benchmark, run
from benchmarks.peers.code import ToMeCode
from benchmarks.rows import RESULTS
from patchslim.errors import PatchslimError

RATIOS = (0.7, 0.55, 0.4)  # at which accuracy is told
OURS, OTHERS, PEERS = "merge,cover,drop", "merge:blocks=2,tome", "tome,evit"
MODES = "compiled,graph,compiled-graph"  # eager is never the fastest
# Shares of a command's seconds: after these no other model is made ready, a part with authors' code has to be ready,
# and any other.
PATIENCE, THEIRS_READY, READY = 0.5, 0.5, 0.7
# Compiling for other GPUs needs none, and `make test` does it.
KERNELS = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not need_not_be_here", "tests/kernels"]
# Model, image side (0: its own), batch, ratio, with blocks=2 and our ToMe, with ToMe's own code.
Case = tuple[str, int, int, float, bool, bool]
SMALL_CASES: list[Case] = [
    *((MODEL, 0, size, PROMISED, True, True) for size in (256, 1)),
    *((name, 0, size, PROMISED, False, True) for name in (SMALL, BASE) for size in (256, 1)),
]
LARGE_CASES: list[Case] = [
    (DINO_LARGE, 518, 32, PROMISED, False, False),
    (LARGE, 0, 128, PROMISED, False, False),
    (DINO, 518, 32, PROMISED, True, True),
    (DINO, 518, 1, PROMISED, False, True),
    (MODEL, 448, 32, 0.4, False, True),
]

Device = Annotated[str, typer.Option("--device")]
Span = Annotated[float, typer.Option("--seconds", help="Of timing, for each model and mode.")]
Limit = Annotated[float, typer.Option("--limit", help="Seconds that the whole command may take.")]
Only = Annotated[str, typer.Option("--only", metavar="A[,B…]", help="Parts whose names hold one of these [all].")]


def small(
    tome: ToMeCode = None,
    device: Device = "cuda",
    seconds: Span = 0.5,
    limit: Limit = 530,
    only: Only = "",
    out: Out = RESULTS,
) -> None:
    """The speed of DeiT-Ti, S and B, at batch 1 and 256."""
    run_some(timings(SMALL_CASES, tome, device, seconds, limit, out), only, out)


def large(
    tome: ToMeCode = None,
    device: Device = "cuda",
    seconds: Span = 0.5,
    limit: Limit = 530,
    only: Only = "",
    out: Out = RESULTS,
) -> None:
    """The speed of ViT-L and of images of 448 and 518 pixels; kernels against the tensor functions that they equal."""
    kernels = Part("kernels", [sys.executable, *KERNELS], READY * limit)
    run_some([kernels, *timings(LARGE_CASES, tome, device, seconds, limit, out)], only, out)


def picture(
    tome: ToMeCode = None,
    device: Device = "cuda",
    seconds: Span = 0.5,
    limit: Limit = 530,
    only: Only = "",
    out: Out = RESULTS,
) -> None:
    """The speed of DeiT-Ti by all methods at three ratios; with the counts that `gpu accuracy` found, if it has run."""
    cases: list[Case] = [(MODEL, 0, size, ratio, False, True) for size in (256, 1) for ratio in RATIOS]
    run_some(timings(cases, tome, device, seconds, limit, out, f"{OURS},{PEERS}", "--searched"), only, out)


def run_some(parts: Sequence[Part], only: str, out: Path, together: bool = True) -> None:
    """Run the parts whose names hold one of some words, at once or one after the other."""
    found = [part for part in parts if any(word in part.name for word in only.split(","))]
    if not found:
        raise PatchslimError(f"No part's name holds {only!r}; they are {', '.join(part.name for part in parts)}.")
    for some in [found] if together else [[part] for part in found]:
        run(some, out / "logs")


def timings(
    cases: Sequence[Case],
    tome: Path | None,
    device: str,
    seconds: float,
    limit: float,
    out: Path,
    ours: str | None = None,
    *more: str,
) -> list[Part]:
    """What is timed: models are compiled side by side, and then wait for their turn."""
    found = []
    for model, side, size, ratio, others, theirs in cases:
        words = ["--model", model, "--batch-sizes", str(size), "--target-macs", str(ratio), "--device", device]
        words += ["--mode", MODES if device == "cuda" else "auto", "--seconds", str(seconds), "--out", str(out)]
        words += ["--patience", str(PATIENCE * limit), *(("--img-size", str(side)) if side else ()), *more]
        name = f"{model}-{side or 'own'}-{size}-{ratio}"
        for kind, methods in (("ours", ours or OURS), ("others", OTHERS if others else "")):
            if methods:
                timing = benchmark("speed", *words, "--methods", methods)
                found.append(Part(f"{name}-{kind}", timing, limit, True, READY * limit))
        if theirs and tome is not None:
            timing = benchmark("speed", *words, "--methods", "", "--tome", str(tome))
            found.append(Part(f"{name}-tome", timing, limit, True, THEIRS_READY * limit))
    return found


def accuracy(
    checkpoint: Weights,
    data: Annotated[str, typer.Option("--data", help="Unlabelled images to choose by.")],
    val: Annotated[str, typer.Option("--val", help="Labelled images.")],
    train: Annotated[str | None, typer.Option("--train", help="Unlabelled images to recover with [--data].")] = None,
    unseen: Annotated[str | None, typer.Option("--unseen", help="Images for the error [what --data has left].")] = None,
    model: Annotated[str, typer.Option("--model")] = MODEL,
    images: int = 1000,
    recover: Annotated[int, typer.Option("--recover", help="Epochs of each recovery; 0 for none.")] = 30,
    side: Annotated[int, typer.Option("--large", help="Image side at which the most is removed too; 0: none.")] = 448,
    tome: ToMeCode = None,
    device: Device = "cuda",
    limit: Limit = 530,
    only: Only = "",
    out: Out = RESULTS,
) -> None:
    """Searches of all methods at three ratios side by side, their top-1, and what recoveries give back."""
    given = ["--checkpoint", str(checkpoint), "--model", model, "--data", data, "--val", val, "--device", device]
    given += ["--out", str(out), *(("--unseen", unseen) if unseen else ())]
    recovery = ["--recover", str(recover), *(("--train", train) if train else ())] if recover else []

    def part(methods: str, ratio: float, *more: str, count: int = images, kind: str = "") -> Part:
        words = [*given, "--methods", methods, "--target-macs", str(ratio), "--images", str(count), *more]
        return Part(f"accuracy-{methods.replace(',', '-')}-{ratio}{kind}", benchmark("accuracy", *words), limit)

    recovered = {("merge", 0.4), ("merge", 0.55), ("cover", 0.55)}
    parts = [
        part(method, ratio, *(recovery if (method, ratio) in recovered else ()))
        for ratio in reversed(RATIOS)
        for method in OURS.split(",")
    ]
    theirs = ["--tome", str(tome)] if tome is not None else []
    parts += [part(PEERS, ratio, *theirs) for ratio in RATIOS]
    if side:  # as many patches to look at, of fewer images
        count = images * 224**2 // side**2
        parts.append(part("merge", 0.4, "--img-size", str(side), count=count, kind="-large"))
    run_some(parts, only, out)


def asked(
    checkpoint: Weights,
    data: Annotated[str, typer.Option("--data", help="Unlabelled images to choose by.")],
    model: Annotated[str, typer.Option("--model")] = MODEL,
    target: Annotated[float, typer.Option("--target-speedup")] = 1.5,
    images: int = 256,
    mode: Annotated[
        str, typer.Option("--mode", help="auto compiles every plan that is tried: it takes longer.")
    ] = "graph",
    device: Device = "cuda",
    limit: Limit = 530,
    only: Only = "",
    out: Out = RESULTS,
) -> None:
    """What comes of asking for a speed-up at batch 1 and 256, one search after the other; a training step's speed."""
    where = ["--model", model, "--device", device, "--out", str(out)]
    words = [*where, "--checkpoint", str(checkpoint), "--data", data, "--images", str(images), "--mode", mode]
    words += ["--methods", OURS, "--batch-sizes", "1,256", "--target-speedup", str(target)]
    training = Part("training", benchmark("training-speed", *where), limit / 4)
    # Nothing may run beside what times by itself.
    run_some([training, Part("asked", benchmark("speedup", *words), 3 * limit / 4)], only, out, together=False)
