"""What comes of asking for a speed-up: searches that time plans on this device, judged by a timing of their own."""

from __future__ import annotations

import time
from typing import Annotated, Any

import torch
import typer
from torch import nn

from benchmarks.inputs import (
    MODEL,
    OWN_FAULT,
    Methods,
    ModelName,
    Out,
    Sized,
    Weights,
    Where,
    in_memory,
    network,
    noise,
    read_methods,
    say,
)
from benchmarks.rows import RESULTS, Row, about, keep
from benchmarks.table import COLUMNS, method_of, number, pages, place, value
from patchslim.data.views import seeded
from patchslim.hosts import HostInfo
from patchslim.macs import count_macs, host_macs
from patchslim.methods import Task, fit, model_of
from patchslim.search import Target
from patchslim.timing import DTYPES, Contest
from patchslim.timing.modes import in_dtype, modes_for

BATCH = 128  # images at a time, of a search


def speedup(
    data: Annotated[str, typer.Option("--data", help="Unlabelled images.")],
    checkpoint: Weights = None,
    model: ModelName = MODEL,
    methods: Methods = "merge,cover,drop",
    target: Annotated[float, typer.Option("--target-speedup", help="Times as fast as the host.")] = 1.5,
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", metavar="B[,B…]")] = "1,256",
    dtype: Annotated[str | None, typer.Option("--dtype", help="[bfloat16 on a GPU, float32 on a CPU]")] = None,
    mode: str = "auto",
    images: Annotated[int, typer.Option("--images", help="To choose by.")] = 256,
    seconds: Annotated[float, typer.Option("--seconds", help="Of the judging, for each model and mode.")] = 2.0,
    seed: int = 0,
    img_size: Sized = None,
    device: Where = None,
    out: Out = RESULTS,
) -> None:
    """Ask for a speed-up by each method at each batch size, and time host and slim model anew."""
    host, info, place = network(model, checkpoint, img_size, device)
    dtype = dtype or ("float32" if place.type == "cpu" else "bfloat16")
    source = in_memory(data, host, images, seed)
    head = about(place) | {"question": "speedup", "model": model, "image_size": info.image_size[0], "seed": seed}
    head |= {"images": images, "dtype": dtype, "point": {"asked": target}}
    contest = Contest(modes_for([mode], place, packed=False), dtype, seconds=seconds)
    rows: list[Row] = []
    for chosen in read_methods(methods):
        task = Task.of(host, source, seed=seed, batch_size=BATCH)  # what one batch size tells serves the other
        for size in map(int, batch_sizes.split(",")):
            own: dict[str, Any] = {"method": chosen.name, "settings": chosen.settings, "batch_size": size}
            aimed, start = task.at(Target(speedup=target, batch_size=size, dtype=dtype, mode=mode)), time.monotonic()
            try:
                with seeded(seed, device=place):
                    found = fit(chosen.method, aimed)
            except OWN_FAULT as error:
                rows.append(Row(**head, **own, reason=str(error)))
            else:
                own["search_seconds"] = round(time.monotonic() - start, 1)
                own["values"] = {"predicted": round(aimed.report["predicted"], 4)}
                own |= judged(contest, host, model_of(found, host), info, size, place)
                rows.append(Row(**head, **own))
            keep(rows[-1:], out)
            say(f"{chosen}, batch {size}: {rows[-1].speedup or rows[-1].reason}")
    print(pages("speedup", rows))


def judged(
    contest: Contest, host: nn.Module, slim: nn.Module, info: HostInfo, size: int, place: torch.device
) -> dict[str, Any]:
    """What a slim model is, and how fast beside the host, both compiled or recorded anew."""
    models = {name: in_dtype(model, contest.dtype) for name, model in (("host", host), ("slim", slim))}
    found = contest.time(models, noise(info, size, place, DTYPES[contest.dtype]))
    macs, plan = count_macs(slim), getattr(slim, "plan", None)
    return {
        "macs": macs,
        "macs_ratio": macs / host_macs(info),
        "patches_per_block": None if plan is None else list(plan.counts),
        "images_per_second": round(size / found["slim"].seconds, 1),
        "mode": found["slim"].best,
        "speedup": round(found["host"].seconds / found["slim"].seconds, 4),
    }


COLUMNS["speedup"] = {
    "method": method_of,
    "batch": number("batch_size", "d"),
    "dtype": number("dtype", ""),
    "asked": place("asked"),
    "predicted": value("predicted", ".2f"),
    "× host": number("speedup", ".2f"),
    "mode": number("mode", ""),
    "MACs": number("macs_ratio", ".3f"),
    "search, s": number("search_seconds", ".0f"),
}
