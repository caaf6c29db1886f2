"""Top-1 and top-5 of a model on labelled images, and of two models on the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.measure.paired import Paired, paired
from patchslim.measure.ranks import Ranks, ranks_of


@dataclass(frozen=True)
class Accuracy:
    """In percent, over the labelled images that could be read."""

    top1: float
    top5: float
    images: int
    unlabelled: int
    skipped: int
    image_macs: dict[str, float] | None = None  # mean, p5 and p95 over the images, where images differ


def evaluate(
    model: nn.Module,
    images: ImageSource,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda done: None,
) -> Accuracy:
    """Measure a model in eval mode, on the device it is on. Unlabelled images are left out."""
    (found,) = ranks_of([model], [images], batch_size, progress)
    return _accuracy(found)


def evaluate_pair(
    first: nn.Module,
    second: nn.Module,
    images: ImageSource,
    second_images: ImageSource | None = None,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Accuracy, Accuracy, Paired]:
    """Measure two models on the same images in one pass, and how their top-1 differs, first minus second.

    `second_images` are the same images as the second model wants them, where that is not how the first does.
    """
    sources = [images, images if second_images is None else second_images]
    one, two = ranks_of([first, second], sources, batch_size, progress)
    return _accuracy(one), _accuracy(two), paired(one.hits, two.hits)


def spread(values: Tensor) -> dict[str, float]:
    """Mean, 5th and 95th percentile: (images,) → three numbers."""
    low, high = values.double().quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    return {"mean": float(values.double().mean()), "p5": low, "p95": high}


def _accuracy(found: Ranks) -> Accuracy:
    return Accuracy(
        top1=_percent(found.ranks < 1),
        top5=_percent(found.ranks < 5),
        images=len(found.ranks),
        unlabelled=found.unlabelled,
        skipped=found.skipped,
        image_macs=None if found.macs is None else spread(found.macs),
    )


def _percent(hits: Tensor) -> float:
    return float(hits.double().mean() * 100)
