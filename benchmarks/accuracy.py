"""How much accuracy is lost: methods at one MAC ratio, by unlabelled images, before and after a recovery."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from benchmarks.inputs import (
    MODEL,
    OWN_FAULT,
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
    scored,
    training_images,
)
from benchmarks.peers.code import EViTCode, ToMeCode, published
from benchmarks.rows import RESULTS, Row, about, keep
from patchslim.cache import Cache
from patchslim.data import ImageSource, TensorImages
from patchslim.data.views import seeded
from patchslim.errors import DataError
from patchslim.evidence.features import Features
from patchslim.evidence.network import relative_error
from patchslim.hosts import HostInfo, open_host, open_slim
from patchslim.macs import count_macs, host_macs
from patchslim.measure.accuracy import ranks_of
from patchslim.methods import Fitted, Task, fit, model_of
from patchslim.recover import RecoverConfig, recover
from patchslim.runs.make import peak_memory_gib
from patchslim.search import Target
from patchslim.slimmed import states_of

BATCH = 128  # images at a time
USUAL = "merge,merge:blocks=none,cover,drop,predict,ps,tome"
UNSEEN = 500  # training images, at most, that are not chosen by and that the error is measured on


def accuracy(
    data: Annotated[str, typer.Option("--data", help="Unlabelled training images; a sample of them is chosen by.")],
    val: Annotated[str, typer.Option("--val", help="Labelled images to measure top-1 on.")],
    checkpoint: Weights,
    model: ModelName = MODEL,
    methods: Methods = USUAL,
    tome: ToMeCode = None,
    evit: EViTCode = None,
    target_macs: Macs = 0.55,
    images: Annotated[int, typer.Option("--images", help="To choose by.")] = 256,
    seed: int = 0,
    train: Annotated[str | None, typer.Option("--train", help="Unlabelled images to recover with [--data].")] = None,
    recover_epochs: Annotated[int, typer.Option("--recover", help="Epochs of a recovery; 0 for none.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", help="Measure on a sample of --val.")] = None,
    unseen: Annotated[str | None, typer.Option("--unseen", help="Images for the error [what --data has left].")] = None,
    memory: Annotated[float, typer.Option("--memory", help="Bound on cached features, in GiB.")] = 4.0,
    img_size: Sized = None,
    device: Where = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Search anew though a cache of the search is there.")] = False,
    cache: Annotated[Path | None, typer.Option("--cache", help="Folder for what searches find out.")] = None,
    out: Out = RESULTS,
) -> None:
    """Slim by each method, and measure top-1 on --val and the error on training images that were not chosen by."""
    wanted = read_methods(methods) if methods else []
    host, info, place = network(model, checkpoint, img_size, device)
    chosen, others = split(data, unseen, host, images, seed)
    case = Case(host, in_memory(val, host, limit, split="test"), others)
    head = about(place) | {"question": "accuracy", "model": model, "image_size": info.image_size[0], "seed": seed}
    head |= {"images": images}
    keep([Row(**head, method="host", macs=host_macs(info), **case.score(host))], out)
    for theirs, known in published(host, info, target_macs, tome, evit):
        keep([Row(**head, **known, **case.score(theirs, error=False))], out)
    for one in wanted:
        head |= {"method": one.name, "settings": one.settings, "target_macs": target_macs}
        # A task of its own for each: what one found out is neither true of another nor part of its time.
        folder = None if cache is None else cache / f"{one}"
        if folder is not None and fresh:
            shutil.rmtree(folder, ignore_errors=True)
        settings: dict[str, Any] = {"seed": seed, "batch_size": BATCH, "memory_gib": memory, "cache": Cache(folder)}
        start = time.monotonic()
        try:
            with seeded(seed, device=place):
                found = fit(one.method, Task.of(host, chosen, Target(macs=target_macs), **settings))
        except OWN_FAULT as error:
            keep([Row(**head, reason=str(error))], out)
            continue
        seconds = round(time.monotonic() - start, 1)
        slim = model_of(found, host)
        row = Row(**head, **facts(slim, found, seconds, info), **case.score(slim))
        keep([row], out)
        say(f"{one} at {target_macs:g}: {row.top1:.2f} %, {row.lost:+.2f} lost, error {row.error}, {seconds} s")
        if recover_epochs:
            keep([recovered(row, case, slim, host, training_images(train or data, host), recover_epochs)], out)


def split(data: str, unseen: str | None, host: nn.Module, images: int, seed: int) -> tuple[TensorImages, TensorImages]:
    """Images to choose by, and others that the error is measured on."""
    every = in_memory(data, host)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed)).tolist()
    if unseen is None and len(every) <= images:
        raise DataError(f"{data} has {len(every)} images; --images has to leave some, or --unseen names others.")
    chosen, left = (every.subset(sorted(own)) for own in (order[:images], order[images : images + UNSEEN]))
    return chosen, left if unseen is None else in_memory(unseen, host, UNSEEN, seed)


def facts(slim: nn.Module, found: Fitted, seconds: float, info: HostInfo) -> dict[str, Any]:
    """What a slim model is and what its search took."""
    macs = count_macs(slim)
    return {
        "macs": macs,
        "macs_ratio": macs / host_macs(info),
        "patches_per_block": None if found.plan is None else list(found.plan.counts),
        "search_seconds": seconds,
        "peak_memory_gib": round(peak_memory_gib(), 2),
    }


def recovered(row: Row, case: Case, slim: nn.Module, host: nn.Module, images: ImageSource, epochs: int) -> Row:
    """The same row after a recovery without labels."""
    result = recover(slim, host, images, RecoverConfig(epochs=epochs, seed=row.seed or 0))
    more = {"recovery_epochs": epochs, "recovery_images": len(images), "recovery_seconds": result.report["seconds"]}
    found = Row(**row.model_dump() | more | case.score(result.model))
    say(f"{row.method}, recovered: {found.top1:.2f} %, {found.lost:+.2f} lost")
    return found


@dataclass
class Case:
    """A host, and the images that everything is measured on."""

    host: nn.Module
    val: ImageSource
    unseen: ImageSource
    base: torch.Tensor | None = None  # which images the host gets right

    def score(self, model: nn.Module, error: bool = True) -> dict[str, Any]:
        """Top-1 and top-5 with intervals, what is lost against the host, and, where asked for, the error."""
        (found,) = ranks_of([model], [self.val], BATCH)
        score = scored(found.hits, self.base) | {"top5": float((found.ranks < 5).double().mean() * 100)}
        if self.base is None:
            self.base = found.hits
        elif error:
            score |= {"error": error_of(model, self.host, self.unseen), "error_images": len(self.unseen)}
        return score


@torch.no_grad()
def error_of(slim: nn.Module, host: nn.Module, images: ImageSource) -> float:
    """The relative error of what the head reads, averaged over images."""
    one, other, errors = open_slim(slim), open_host(host), []
    features = Features(other, images, BATCH, limit_bytes=0.0)
    features.focus((0, other.info.depth))
    for x, out in features.batches(0, other.info.depth):
        states: Any = states_of(one, x) if hasattr(slim, "plan") else None
        last: Any = one.blocks[-1]
        read = last.tensor(states[-1]) if states is not None else _through(one.blocks, x)
        errors.append(relative_error(one.features(read), other.features(out)))
    return float(torch.cat([error.double().cpu() for error in errors]).mean())


def _through(blocks: Any, x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x, None)
    return x
