"""How fast it is: images per second of a host, of what methods make of it, and of authors' code, in one run.

Each model counts by its fastest mode."""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from benchmarks.drawn import drawn_model
from benchmarks.inputs import (
    MODEL,
    Chosen,
    Macs,
    Methods,
    ModelName,
    Out,
    Sized,
    Weights,
    Where,
    network,
    noise,
    read_methods,
    say,
)
from benchmarks.peers.code import EViTCode, ToMeCode, published
from benchmarks.rows import RESULTS, Row, about, keep, read_rows
from patchslim.errors import PatchslimError, first_words
from patchslim.hosts import HostInfo, with_matmul_embed
from patchslim.macs import count_macs, host_macs
from patchslim.timing import DTYPES, Contest
from patchslim.timing.modes import Prepared, forget_compiled, in_dtype, modes_for, prepare

USUAL = "merge,merge:blocks=none,cover,drop,predict,tome,evit"
SAME = "host, same embedding"
Mode = Annotated[
    str,
    typer.Option("--mode", metavar="M[,M…]", help="eager, compiled, graph, compiled-graph; auto: all that go."),
]
Turn = Annotated[
    Path | None,
    typer.Option("--turn", exists=True, dir_okay=False, help="Time only while nobody else holds this file: see `gpu`."),
]


def speed(
    model: ModelName = MODEL,
    checkpoint: Weights = None,
    methods: Methods = USUAL,
    tome: ToMeCode = None,
    evit: EViTCode = None,
    target_macs: Macs = 0.55,
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", metavar="B[,B…]")] = "256,1",
    dtype: str = "bfloat16",
    mode: Mode = "auto",
    seconds: Annotated[float, typer.Option("--seconds", help="For each model in each mode.")] = 1.0,
    searched: Annotated[bool, typer.Option("--searched", help="With the counts that `accuracy` found.")] = False,
    turn: Turn = None,
    patience: Annotated[
        float, typer.Option("--patience", help="Seconds from the start after which no other model is made ready.")
    ] = math.inf,
    img_size: Sized = None,
    device: Where = None,
    out: Out = RESULTS,
) -> None:
    """Time hosts and slim models in turns. Speed does not depend on weights, so they may be random.

    Of the authors' code it takes the setting with the most MACs within the ratio. It is run from a checkout.
    """
    last = time.monotonic() + patience
    sort_by_library()
    host, info, place = network(model, checkpoint, img_size, device)
    models, heads = contenders(host, info)
    for chosen in read_methods(methods) if methods else ():
        try:
            counts = searched_counts(read_rows(out), model, info, chosen, target_macs) if searched else None
            models[str(chosen)] = drawn_model(host, chosen, target_macs, counts)
            heads[str(chosen)] = about_model(models[str(chosen)], chosen, target_macs, info)
        except PatchslimError as error:
            say(f"{chosen}: {error}")
    for theirs, known in published(host, info, target_macs, tome, evit):
        models[known["method"]], heads[known["method"]] = theirs, known
    contest = Contest(modes_for(mode.split(","), place, packed=False), dtype, seconds=seconds, tell=say)
    ready = {name: in_dtype(own, dtype) for name, own in models.items()}
    for size in map(int, batch_sizes.split(",")):
        about_all = about(place) | {"question": "speed", "model": model, "image_size": info.image_size[0]}
        about_all |= {"batch_size": size, "dtype": dtype}
        found = timed(contest, ready, noise(info, size, place, DTYPES[dtype]), turn=turn, last=last)
        rows = [Row(**about_all, **heads[name], **own) for name, own in found if name in heads]
        for row in rows:
            say(f"batch {size}: {row.method} {row.settings or ''} {row.images_per_second:,.0f}/s ({row.mode})")
        keep(rows, out)


def contenders(host: nn.Module, info: HostInfo) -> tuple[dict[str, nn.Module], dict[str, dict[str, Any]]]:
    """What every contest begins with: the host as it comes, and with the patch embedding of slim models."""
    known = {"method": "host", "macs": host_macs(info), "macs_ratio": 1.0, "parameters": info.parameters}
    return {"host": host, SAME: with_matmul_embed(host)}, {"host": known}


def sort_by_library() -> None:
    """Have compiled models sort by ATen's kernel, as they do eagerly: with one made for every length, ToMe was not
    compiled after five minutes for batches of 256 (docs/notebook/results.md)."""
    from torch._inductor.lowering import make_fallback

    for sort in (torch.ops.aten.sort.default, torch.ops.aten.sort.stable):
        make_fallback(sort, warn=False, override_decomp=True)


@contextmanager
def holding(path: Path | None, alone: bool) -> Iterator[None]:
    """Hold a file: with others who prepare, or alone, once nobody else holds it."""
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def mark_of(turn: Path, process: int) -> Path:
    """The file by which a process tells that it has nothing left to make ready."""
    return turn.with_name(f"{turn.name}-{process}")


def made_ready(
    contest: Contest, models: dict[str, nn.Module], batch: torch.Tensor, last: float = math.inf
) -> dict[str, Prepared]:
    """Every model in every mode, compiled and run once. One that fails does not stop the others, nor does one whose
    turn comes after the last moment; without the first, a host, there is nothing to compare with."""
    forget_compiled(4 * len(models))
    found: dict[str, Prepared] = {}
    for name, model in models.items():
        if found and time.monotonic() > last:
            say(f"{name}: no time was left to make it ready")
            continue
        contest.say(f"preparing {name}", len(batch))
        try:
            found[name] = prepare(model, batch, contest.modes)
        except RuntimeError as error:
            if not found:
                raise
            say(f"{name}: {first_words(error)}")
    return found


def timed(
    contest: Contest,
    models: dict[str, nn.Module],
    batch: torch.Tensor,
    host: str = "host",
    turn: Path | None = None,
    last: float = math.inf,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each model's numbers, all timed in turns; with `SAME` only as a baseline, where it is among them."""
    with holding(turn, alone=False):
        ready = made_ready(contest, models, batch, last)
    if turn is not None:
        mark_of(turn, os.getpid()).touch()
    with holding(turn, alone=True):
        found, size = contest.turns(ready, batch), len(batch)
    same = next((own for name, own in found.items() if name.startswith(SAME)), None)
    for name, own in found.items():
        for failed, reason in own.prepared.failed.items():
            say(f"{name}: {failed} failed ({first_words(Exception(reason))})")
        yield (
            name,
            {
                "images_per_second": round(size / own.seconds, 1),
                "mode": own.best,
                "modes": {mode: round(timing.throughput(size), 1) for mode, timing in own.times.items()},
                "speedup": round(found[host].seconds / own.seconds, 4),
                "speedup_same_embedding": None if same is None else round(same.seconds / own.seconds, 4),
            },
        )


def searched_counts(
    rows: Iterable[Row], model: str, info: HostInfo, chosen: Chosen, ratio: float
) -> Sequence[int] | None:
    """Patches per block that a search of `accuracy` found for the same method, model, image size and ratio."""
    wanted = ("accuracy", model, chosen.name, chosen.settings, ratio)
    alike = [row for row in rows if (row.question, row.model, row.method, row.settings, row.target_macs) == wanted]
    sized = [row for row in alike if row.image_size == info.image_size[0]]
    return sized[-1].patches_per_block if sized else None


def about_model(slim: nn.Module, chosen: Chosen, ratio: float, info: HostInfo) -> dict[str, Any]:
    """What a timed model is."""
    macs = count_macs(slim)
    plan = getattr(slim, "plan", None)
    return {
        "method": chosen.name,
        "settings": chosen.settings,
        "target_macs": ratio,
        "macs": macs,
        "macs_ratio": macs / host_macs(info),
        "parameters": sum(weight.numel() for weight in slim.parameters()),
        "patches_per_block": None if plan is None else list(plan.counts),
    }
