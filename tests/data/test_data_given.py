"""Images as people have them are the same images as the tensor they come from; what can't be used is one sentence."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import patchslim as ps
from patchslim.data import as_source, given, tensor_images
from patchslim.errors import DataError
from patchslim.measure import evaluate
from patchslim.recover import RecoverConfig
from small import PYRAMID, make_host, make_images, plan_of

X, Y = make_images(10), torch.arange(10) % 7
WHOLE = tensor_images(X, Y)
UNKNOWN = tensor_images(X)


class Items(Dataset[Any]):
    """A dataset that does not say where it ends, of items of any kind."""

    def __init__(self, item: Callable[[int], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return self.item(index % len(X))


class Stream(IterableDataset[Any]):
    """Items one after the other."""

    def __iter__(self) -> Iterator[Any]:
        return zip(X, Y, strict=True)


def batches(size: int = 4) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(X.split(size), Y.split(size), strict=True)


def one_memory() -> Iterator[Tensor]:
    """As loaders do that fill the same memory with every batch."""
    held = torch.empty_like(X[:5])
    for part in X.split(5):
        yield held.copy_(part)


LABELLED: dict[str, Callable[[], Any]] = {
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=3),
    "list of pairs": lambda: list(batches()),
    "function": lambda: batches,
    "generator": batches,
    "dataset": lambda: TensorDataset(X, Y),
    "dataset of dicts": lambda: Items(lambda i: {"pixel_values": X[i], "labels": int(Y[i])}),
    "dataset of arrays": lambda: Items(lambda i: (X[i].numpy(), np.int64(Y[i]), f"{i}.png")),
    "stream": Stream,
    "loader of a stream": lambda: DataLoader(Stream(), batch_size=4),
    "dicts": lambda: [{"image": x, "label": y} for x, y in batches()],
    "one dict": lambda: {"x": X, "y": Y.tolist()},
    "pair": lambda: (X, Y),
    "pairs of arrays": lambda: [(x.numpy(), y.numpy()) for x, y in batches()],
}
UNLABELLED: dict[str, Callable[[], Any]] = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "array the other way round": lambda: X.numpy()[::-1][::-1],
    "list": lambda: list(X.split(3)),
    "two batches": lambda: X.split(5),
    "list of images": lambda: list(X),
    "lists of images": lambda: [list(part) for part in X.split(4)],
    "the same memory": one_memory,
    "loader of tuples": lambda: DataLoader(TensorDataset(X), batch_size=3),
    "masks and boxes": lambda: Items(lambda i: (X[i], {"boxes": [1, 2]})),
    "soft labels": lambda: [(X, torch.ones(10, 7))],
    "halves": lambda: [X.double()],
}


@pytest.mark.parametrize("kind", [*LABELLED, *UNLABELLED])
def test_they_are_the_images_of_the_tensor(kind: str) -> None:
    source, wanted = as_source((LABELLED | UNLABELLED)[kind]()), WHOLE if kind in LABELLED else UNKNOWN
    assert source.fingerprint == wanted.fingerprint  # of shape, pixels and labels
    assert source.labelled == (kind in LABELLED)
    for _ in range(2):
        assert torch.equal(torch.cat([part for part, _ in source.batches(4)]), X)


def test_a_shuffling_loader_gives_the_same_images_in_every_pass() -> None:
    torch.manual_seed(0)
    source = as_source(DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True))
    first, second = (torch.cat([part for part, _ in source.batches(5)]) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, X)
    assert torch.equal(first.flatten(1).sum(1).sort().values, X.flatten(1).sum(1).sort().values)


def test_every_verb_takes_them() -> None:
    model, loader = make_host(), DataLoader(TensorDataset(X, Y), batch_size=3)
    slims = [ps.slim(model, own, "uniform", macs=0.7) for own in (loader, batches, X)]
    assert len({str(slim.plan) for slim in slims}) == 1
    assert evaluate(model, batches()) == evaluate(model, WHOLE)
    short = RecoverConfig(epochs=1, block_epochs=0, batch_size=4, amp="off")
    learnt = [ps.finetune(slims[0], model, own, short)(X) for own in (loader, WHOLE)]
    assert torch.equal(*learnt)
    table = ps.compare(model, iter(loader), batches, ["uniform"], [0.7])
    assert table["images"] == {"count": 10, "fingerprint": WHOLE.fingerprint} == table["val"]


def test_more_than_fits_is_refused_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def forever() -> Iterator[Tensor]:
        while True:
            yield X

    monkeypatch.setattr(given, "MOST_GIB", 10 * X.nbytes / 2**30)
    assert len(as_source([X] * 10)) == 100
    with pytest.raises(DataError, match=r"The function holds more than .* GiB .* give fewer, or a folder"):
        as_source(forever)


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": ([], "no images in the list"),
    "a generator that is over": (iter([]), "only once"),
    "bytes of pictures": ([(X * 9).to(torch.uint8)], r"are torch.uint8; give floats, normalised"),
    "a tensor of bytes": ((X * 9).to(torch.uint8), r"are torch.uint8; give floats, normalised"),
    "strange numbers": ([X.numpy().astype(str)], "arrays of <U"),
    "not a number": ([X, X / 0], "not finite"),
    "two sizes": ([X, make_images(2, 16)], "3 channels of 32x32 pixels and 3 channels of 16x16 pixels"),
    "another size": ([make_images(2, 16)], "3 channels of 16x16 pixels, the model takes 3 channels of 32x32"),
    "channels last": ([X.permute(0, 2, 3, 1)], "32 channels of 3x32 pixels, the model takes 3 channels of 32x32"),
    "one channel": (X[:, :1], "1 channels of 32x32 pixels, the model takes 3"),
    "labels of others": ([(X, Y[:4])], "one whole number for each of the 10 images"),
    "vectors": ([torch.zeros(5), torch.zeros(5)], r"shape \(5,\)"),
    "pictures": (Items(lambda i: (Image.new("RGB", (4, 4)), 0)), "come as Image, not as tensors"),
    "a dict of others": ([{"text": X}], "has text, and none of them names images"),
    "a path": ("digits", "open it with open_images"),
    "a model": (make_host(), "A VisionTransformer can't be used as images"),
    "a number": (5, "A int can't be used as images"),
    "a function of much": (lambda a, b: X, "needs arguments"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_used_is_refused_before_the_search(kind: str) -> None:
    images, words = REFUSED[kind]
    model = make_host()
    with pytest.raises(DataError, match=words):
        ps.slim(model, images, "uniform", macs=0.7)
    with pytest.raises(DataError, match=words):
        ps.finetune(ps.apply(model, plan_of(model, PYRAMID)), model, images)
    with pytest.raises(DataError, match=words):
        ps.compare(model, X, images, ["uniform"], [0.7])
