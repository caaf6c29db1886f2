"""Where the right class of every image comes in, for one model or for several over the same images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.errors import DataError
from patchslim.hosts import answer_of, open_slim
from patchslim.slim import macs_of_states, plan_of, states_of
from patchslim.slim.block import SlimBlock


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


@torch.inference_mode()
def ranks_of(
    models: Sequence[nn.Module],
    sources: Sequence[ImageSource],
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
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
            stack.enter_context(_in_eval_mode(model))
        for pixels, labels in side_by_side(sources, batch_size):
            known = labels >= 0
            unlabelled += int((~known).sum())
            if bool(known.any()):
                for own, model, batch in zip(found, models, pixels, strict=True):
                    own.append(_run(model, batch[known], labels[known]))
            progress(len(labels))
    if not found[0]:
        raise DataError(f"None of the images in {sources[0].name} that can be read has a label; give labelled ones.")
    return [_joined(own, unlabelled, images.skipped) for own, images in zip(found, sources, strict=True)]


def side_by_side(sources: Sequence[ImageSource], batch_size: int) -> Iterator[tuple[list[Tensor], Tensor]]:
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


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _run(model: nn.Module, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Ranks, and MACs where images differ: (B, C, H, W), (B,) → (B,), (B,) on the CPU."""
    pixels = pixels.to(next(model.parameters()).device)
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
            "use images of the classes the model was trained on."
        )
    label = labels[:, None].to(logits.device)
    right = logits.gather(1, label)
    earlier = torch.arange(logits.shape[1], device=logits.device) < label
    return ((logits > right) | ((logits == right) & earlier) | logits.isnan() | right.isnan()).sum(dim=1)


def _joined(batches: list[tuple[Tensor, Tensor | None]], unlabelled: int, skipped: int) -> Ranks:
    macs = [own for _, own in batches if own is not None]
    return Ranks(torch.cat([ranks for ranks, _ in batches]), unlabelled, skipped, torch.cat(macs) if macs else None)


def check_labelled(images: ImageSource) -> None:
    """Raise DataError where no image has a label."""
    if not images.labelled:
        raise DataError(
            f"{images.name} has no labels, and accuracy needs them: give class folders or shards with .cls files."
        )
