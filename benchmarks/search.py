"""What a search costs: seconds, forward passes' worth of time, and the most memory its process held."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Annotated

import torch
import typer

from benchmarks.accuracy import BATCH, facts
from benchmarks.inputs import (
    MODEL,
    Macs,
    Methods,
    ModelName,
    Out,
    Sized,
    Weights,
    Where,
    in_memory,
    network,
    read_methods,
    say,
)
from benchmarks.rows import RESULTS, Row, about, keep
from patchslim.data import ImageSource
from patchslim.methods import Task, fit, model_of
from patchslim.search import Target

USUAL = "merge,cover,drop,predict,ps"


def search(
    data: Annotated[str, typer.Option("--data", help="Unlabelled images.")],
    checkpoint: Weights,
    model: ModelName = MODEL,
    methods: Methods = USUAL,
    target_macs: Macs = 0.55,
    images: Annotated[int, typer.Option("--images", help="To choose by.")] = 256,
    memory: Annotated[float, typer.Option("--memory", help="Bound on cached features, in GiB.")] = 2.0,
    img_size: Sized = None,
    device: Where = None,
    out: Out = RESULTS,
) -> None:
    """Search by each method, each in a process of its own, so that one's memory is not another's."""
    wanted = read_methods(methods)
    if len(wanted) > 1:
        for one in wanted:
            done = subprocess.run([sys.executable, "-m", "benchmarks", *_words(sys.argv[1:], methods, str(one))])
            if done.returncode:
                say(f"{one}: exit code {done.returncode}")
        return
    host, info, place = network(model, checkpoint, img_size, device)
    source = in_memory(data, host, images)
    forward = pass_seconds(host, source)
    task = Task.of(host, source, Target(macs=target_macs), batch_size=BATCH, memory_gib=memory)
    start = time.monotonic()
    found = fit(wanted[0].method, task)
    seconds = time.monotonic() - start
    told = facts(model_of(found, host), found, round(seconds, 1), info)
    row = Row(
        **about(place),
        question="search",
        model=model,
        image_size=info.image_size[0],
        method=wanted[0].name,
        settings=wanted[0].settings,
        target_macs=target_macs,
        images=len(source),
        search_passes=round(seconds / forward, 1),
        **told,
    )
    keep([row], out)
    say(f"{wanted[0]}: {seconds:.0f} s, {row.search_passes} forward passes, {row.peak_memory_gib} GiB")


def _words(words: list[str], methods: str, one: str) -> list[str]:
    """The same command for one method alone."""
    if methods not in words:
        return [*words, "--methods", one]
    return [one if word == methods else word for word in words]


@torch.inference_mode()
def pass_seconds(host: torch.nn.Module, images: ImageSource) -> float:
    """One pass of the host over the images, after one that warms up."""
    place = next(host.parameters()).device
    for _ in range(2):
        start = time.monotonic()
        for pixels, _ in images.batches(BATCH):
            host(pixels.to(place))
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        seconds = time.monotonic() - start
    return seconds
