"""Accuracy on labelled images, of one model or of several that see the same ones in one pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor, nn

from patchslim.data import AnyImages, ImageSource, as_source
from patchslim.errors import DataError
from patchslim.hosts import answer_of, in_eval, like_weights, open_slim
from patchslim.measure.paired import Paired, paired
from patchslim.slimmed import SlimBlock, macs_of_states, plan_of, states_of

Progress = Callable[[int], None]  # how many images more


@dataclass(frozen=True)
class Accuracy:
    """In percent, over the labelled images that could be read."""

    top1: float
    top5: float
    images: int
    unlabelled: int
    skipped: int
    image_macs: dict[str, float] | None = None  # mean, p5 and p95 over the images, where images differ


@dataclass(frozen=True)
class Ranks:
    """What one pass tells of a model."""

    ranks: Tensor  # (images,): how many classes score higher than the right one, in the order of the source
    unlabelled: int
    skipped: int
    macs: Tensor | None  # (images,), where images differ

    @property
    def hits(self) -> Tensor:
        """Which images are right: (images,) booleans."""
        return self.ranks < 1

    def top(self, count: int) -> float:
        """Of how many images the right class is among the first ones, in percent."""
        return float((self.ranks < count).double().mean() * 100)

    @property
    def accuracy(self) -> Accuracy:
        """In numbers."""
        macs = None if self.macs is None else spread(self.macs)
        return Accuracy(self.top(1), self.top(5), len(self.ranks), self.unlabelled, self.skipped, macs)


def evaluate(model: nn.Module, images: AnyImages, batch_size: int = 64) -> Accuracy:
    """Measure a model in eval mode, on the device it is on. Unlabelled images are left out."""
    (found,) = ranks_of([model], [as_source(images)], batch_size)
    return found.accuracy


def evaluate_pair(
    first: nn.Module,
    second: nn.Module,
    images: AnyImages,
    second_images: AnyImages | None = None,
    batch_size: int = 64,
    progress: Progress = lambda more: None,
) -> tuple[Accuracy, Accuracy, Paired]:
    """Measure two models on the same images in one pass, and how their top-1 differs, first minus second.

    `second_images` are the same images as the second model wants them, where that is not how the first does.
    """
    source = as_source(images)
    sources = [source, source if second_images is None else as_source(second_images)]
    one, two = ranks_of([first, second], sources, batch_size, progress)
    return one.accuracy, two.accuracy, paired(one.hits, two.hits)


def spread(values: Tensor) -> dict[str, float]:
    """Mean, 5th and 95th percentile: (images,) → three numbers."""
    low, high = values.double().quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    return {"mean": float(values.double().mean()), "p5": low, "p95": high}


@torch.inference_mode()
def ranks_of(
    models: Sequence[nn.Module], sources: Sequence[ImageSource], batch_size: int, progress: Progress = lambda more: None
) -> list[Ranks]:
    """Run each model in eval mode, on the device it is on, over the labelled images of its source, in one pass.

    The sources hold the same images, each as its model wants them; one that is given twice is read once.
    """
    for images in sources:
        check_labelled(images)
    found: list[list[tuple[Tensor, Tensor | None]]] = [[] for _ in models]
    unlabelled = 0
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(in_eval(model))
        for pixels, labels in _side_by_side(sources, batch_size):
            known = labels >= 0
            unlabelled += int((~known).sum())
            if bool(known.any()):
                for own, model, batch in zip(found, models, pixels, strict=True):
                    own.append(_run(model, batch[known], labels[known]))
            progress(len(labels))
    if not found[0]:
        raise DataError(f"None of the images in {sources[0].name} that can be read has a label; give labelled ones.")
    joined = []
    for own, images in zip(found, sources, strict=True):
        macs = [taken for _, taken in own if taken is not None]
        ranks = torch.cat([ranks for ranks, _ in own])
        joined.append(Ranks(ranks, unlabelled, images.skipped, torch.cat(macs) if macs else None))
    return joined


def check_labelled(images: ImageSource) -> None:
    """Raise DataError where no image has a label."""
    if not images.labelled:
        raise DataError(
            f"{images.name} has no labels, and accuracy needs them: give class folders or shards with .cls files."
        )


def _side_by_side(sources: Sequence[ImageSource], batch_size: int) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Batches of the same images from all sources: (B, C, H, W) for each, and their labels (B,)."""
    distinct = list({id(images): images for images in sources}.values())
    for row in zip_longest(*(images.batches(batch_size) for images in distinct)):
        batches = {id(images): batch for images, batch in zip(distinct, row, strict=True) if batch is not None}
        _, labels = next(iter(batches.values()))
        if len(batches) < len(distinct) or not all(torch.equal(labels, other) for _, other in batches.values()):
            raise DataError(
                f"The two passes over {distinct[0].name} did not give the same images: some could be read only once; "
                "try again when nothing changes them."
            )
        yield [batches[id(images)][0] for images in sources], labels


def _run(model: nn.Module, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Ranks, and MACs where images differ: (B, C, H, W), (B,) → (B,), (B,) on the CPU."""
    pixels = like_weights(model, pixels)
    plan = plan_of(model)
    if plan is None or plan.rectangular:
        return _ranks(answer_of(model(pixels)), labels).cpu(), None
    host = open_slim(model)
    states, last = states_of(host, host.embed(pixels)), host.blocks[-1]
    assert isinstance(last, SlimBlock)
    logits = host.logits(last.tensor(states[-1]))
    return _ranks(logits, labels).cpu(), macs_of_states(host, plan, states)


def _ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes come before the right one, equal ones in order: (B, classes), (B,) → (B,).

    Logits that are not numbers come before all others, so that a broken network is never right.
    """
    if int(labels.max()) >= logits.shape[1]:
        raise DataError(
            f"The images have a label {int(labels.max())}, but the model has only {logits.shape[1]} outputs; "
            "use images of the classes the model was trained on, or name the classes in its order with --classes."
        )
    label = labels[:, None].to(logits.device)
    right = logits.gather(1, label)
    earlier = torch.arange(logits.shape[1], device=logits.device) < label
    return ((logits > right) | ((logits == right) & earlier) | logits.isnan() | right.isnan()).sum(dim=1)
