"""Accuracy against counting by hand, of one model and of two on the same images."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.errors import DataError
from patchslim.measure import evaluate, evaluate_pair, paired
from small import THRESHOLDS, make_host, make_images, predicting, slim_of


class Fixed(nn.Module):
    """Gives each image the logits written in its first row of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, 0, :7]


def test_top1_and_top5_by_hand() -> None:
    images = make_images(40)
    labels = torch.arange(40) % 7
    labels[:4] = -1
    found = evaluate(Fixed().train(), tensor_images(images, labels), batch_size=9)
    top1 = top5 = 0
    for i in range(4, 40):
        ranked = sorted(range(7), key=lambda c: -float(images[i, 0, 0, c]))
        top1 += ranked[0] == int(labels[i])
        top5 += int(labels[i]) in ranked[:5]
    assert found.top1 == pytest.approx(100 * top1 / 36)
    assert found.top5 == pytest.approx(100 * top5 / 36)
    assert (found.images, found.unlabelled) == (36, 4)


def test_the_model_keeps_its_mode() -> None:
    model = make_host().train()
    evaluate(model, tensor_images(make_images(4), torch.zeros(4, dtype=torch.long)))
    assert model.training


def test_labels_are_needed_and_have_to_fit() -> None:
    with pytest.raises(DataError, match="no labels"):
        evaluate(Fixed(), tensor_images(make_images(4)))
    with pytest.raises(DataError, match="label 7"):
        evaluate(Fixed(), tensor_images(make_images(4), torch.full((4,), 7)))


class UnreadableLabels:
    """A source whose labelled images can't be read."""

    classes: int | None = None
    name, labelled, fingerprint, skipped, image_size, channels = "odd", True, "", 1, (32, 32), 3

    def __len__(self) -> int:
        return 2

    def batches(self, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield make_images(1), torch.tensor([-1])


def test_labels_only_on_unreadable_images() -> None:
    with pytest.raises(DataError, match="has a label"):
        evaluate(Fixed(), UnreadableLabels())


class Watched:
    """Images in memory that count their passes; the batches in `broken` lack their last image."""

    classes: int | None = None
    name, labelled, fingerprint, skipped, image_size, channels = "watched", True, "", 0, (32, 32), 3

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, broken: tuple[int, ...] = ()) -> None:
        self.images, self.labels, self.broken, self.passes = images, labels, broken, 0

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.passes += 1
        pairs = zip(self.images.split(batch_size), self.labels.split(batch_size), strict=True)
        for index, (images, labels) in enumerate(pairs):
            good = len(labels) - (index in self.broken)
            if good:
                yield images[:good], labels[:good]


def test_a_pair_is_measured_like_each_alone_in_one_pass() -> None:
    model, slim = slim_of()
    model.train()
    labels = torch.arange(40) % 7
    labels[::9] = -1
    source = Watched(make_images(40), labels)
    done: list[int] = []
    first, second, difference = evaluate_pair(slim, model, source, batch_size=9, progress=done.append)
    assert source.passes == 1
    assert sum(done) == 40
    assert model.training
    assert (first, second) == (evaluate(slim, source, 9), evaluate(model, source, 9))
    assert difference.difference == pytest.approx(first.top1 - second.top1)
    model.eval()
    with torch.inference_mode():
        right = [(one(source.images).argmax(dim=1) == labels)[labels >= 0] for one in (slim, model)]
    assert difference == paired(*right)
    assert difference.images == first.images == 35


def test_each_of_a_pair_sees_its_own_pixels() -> None:
    images, labels = make_images(30), torch.arange(30) % 7
    ours, theirs = tensor_images(images, labels), tensor_images(images.roll(1, dims=3), labels)
    first, second, difference = evaluate_pair(Fixed(), Fixed(), ours, theirs, batch_size=8)
    assert (first, second) == (evaluate(Fixed(), ours), evaluate(Fixed(), theirs))
    assert difference.only_first + difference.only_second > 0


@pytest.mark.parametrize("broken", [(0,), (3,), (4,)])
def test_a_pair_that_did_not_see_the_same_images_is_refused(broken: tuple[int, ...]) -> None:
    """One image short in the first batch, in a later one, and as the whole last batch; either way round."""
    images, labels = make_images(33), torch.zeros(33, dtype=torch.long)
    whole, short = Watched(images, labels), Watched(images, labels, broken)
    for one, other in ((whole, short), (short, whole)):
        with pytest.raises(DataError, match="did not give the same images"):
            evaluate_pair(Fixed(), Fixed(), one, other, batch_size=8)


def test_macs_of_each_image_are_counted_per_model() -> None:
    """Also when a model whose images keep different numbers is given twice."""
    model = make_host()
    slim = ps.apply(model, *predicting(model, thresholds=THRESHOLDS))
    source = tensor_images(make_images(20), torch.arange(20) % 7)
    first, second, difference = evaluate_pair(slim, model, source, batch_size=8)
    assert first.image_macs is not None
    assert first.image_macs["mean"] == pytest.approx(float(ps.image_macs(slim, make_images(20)).double().mean()))
    assert second.image_macs is None
    again, twice, difference = evaluate_pair(slim, slim, source, batch_size=8)
    assert again == twice == first
    assert difference.difference == 0


class Alike(torch.nn.Module):
    """Says the same of every image."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(logits))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, …) → (B, classes)."""
        return self.logits.expand(len(images), -1)


@pytest.mark.parametrize(
    ("logits", "top1"),
    [
        ([1.0, 2.0, 3.0, 0.0], 25.0),
        ([1.0, 1.0, 1.0, 1.0], 25.0),  # a network that says nothing is right where argmax is: at the first class
        ([math.nan] * 4, 0.0),
        ([math.nan, 5.0, 0.0, 0.0], 0.0),
    ],
)
def test_a_network_that_gives_no_numbers_is_never_right(logits: list[float], top1: float) -> None:
    images = tensor_images(torch.zeros(4, 3, 8, 8), torch.arange(4))
    assert evaluate(Alike(logits), images).top1 == top1
