"""Accuracy against counting by hand; timing by its shape, never by its numbers."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from patchslim.data import tensor_images
from patchslim.errors import DataError
from patchslim.measure import evaluate, time_side_by_side
from small import make_host, make_images, slim_of


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

    name, labelled, classes, fingerprint, skipped, image_size = "odd", True, None, "", 1, (32, 32)

    def __len__(self) -> int:
        return 2

    def batches(self, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield make_images(1), torch.tensor([-1])


def test_labels_only_on_unreadable_images() -> None:
    with pytest.raises(DataError, match="has a label"):
        evaluate(Fixed(), UnreadableLabels())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_timing_runs_both_models(dtype: str) -> None:
    model, slim = slim_of()
    calls = {"host": 0, "slim": 0}
    model.register_forward_hook(lambda *args: calls.__setitem__("host", calls["host"] + 1))
    slim.register_forward_hook(lambda *args: calls.__setitem__("slim", calls["slim"] + 1))
    timings = time_side_by_side([slim, model], make_images(2), dtype=dtype, seconds=0.05)
    assert calls["host"] == calls["slim"] >= 5
    for timing in timings:
        assert 0 < timing.low <= timing.median <= timing.high
        assert timing.throughput(2) == pytest.approx(2 / timing.median)
