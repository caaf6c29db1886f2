"""Top-1 and top-5 of a model on labelled images."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.errors import DataError
from patchslim.slim.model import SlimModel, counting


@dataclass(frozen=True)
class Accuracy:
    """In percent, over the labelled images that could be read."""

    top1: float
    top5: float
    images: int
    unlabelled: int
    skipped: int
    image_macs: dict[str, float] | None = None  # mean, p5 and p95 over the images, where images differ


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    images: ImageSource,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda done: None,
) -> Accuracy:
    """Measure a model in eval mode, on the device it is on. Unlabelled images are left out."""
    if not images.labelled:
        raise DataError(
            f"{images.name} has no labels, and accuracy needs them: give class folders or shards with .cls files."
        )
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    ranks, unlabelled = [], 0
    differs = isinstance(model, SlimModel) and model.plan.mode == "threshold"
    with counting(model) if differs else nullcontext() as counts:  # type: ignore[arg-type]
        for pixels, labels in images.batches(batch_size):
            known = labels >= 0
            unlabelled += int((~known).sum())
            if bool(known.any()):
                ranks.append(_ranks(model(pixels[known].to(device)), labels[known].to(device)).cpu())
            progress(len(labels))
    model.train(was_training)
    if not ranks:
        raise DataError(f"None of the images in {images.name} that can be read has a label; give labelled ones.")
    rank = torch.cat(ranks)
    return Accuracy(
        top1=_percent(rank < 1),
        top5=_percent(rank < 5),
        images=len(rank),
        unlabelled=unlabelled,
        skipped=images.skipped,
        image_macs=None if counts is None else spread(counts.macs()),
    )


def spread(values: Tensor) -> dict[str, float]:
    """Mean, 5th and 95th percentile: (images,) → three numbers."""
    low, high = values.double().quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    return {"mean": float(values.double().mean()), "p5": low, "p95": high}


def _ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes score higher than the right one: (B, classes), (B,) → (B,)."""
    if int(labels.max()) >= logits.shape[1]:
        raise DataError(
            f"The images have a label {int(labels.max())}, but the model has only {logits.shape[1]} outputs; "
            "use images of the classes the model was trained on."
        )
    right = logits.gather(1, labels[:, None])
    return (logits > right).sum(dim=1)


def _percent(hits: Tensor) -> float:
    return float(hits.double().mean() * 100)
