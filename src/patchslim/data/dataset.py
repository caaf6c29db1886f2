"""The torch dataset behind `Images`, which turns bad images into notes instead of exceptions."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from patchslim.data.items import Item
from patchslim.data.transform import Transform


class Reading(NamedTuple):
    """One image as read: the (C, H, W) tensor or, for a bad one, None and the reason; `ratio` is the picture's width
    over its height."""

    image: Tensor | None
    label: int
    name: str
    reason: str
    ratio: float = 1.0


class Batch(NamedTuple):
    """A batch as it leaves a worker: (B, C, H, W) images, (B,) labels, and the bad ones as (name, reason).

    `images` is None where none could be read, and where they differ in size: then `mismatch` says so.
    """

    images: Tensor | None
    labels: Tensor
    bad: list[tuple[str, str]]
    mismatch: str


class ItemDataset(Dataset[Reading]):
    """Reads items by index."""

    def __init__(self, items: Sequence[Item], transform: Transform) -> None:
        self.items = items
        self.transform = transform

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Reading:
        return read_item(self.items[index], self.transform)


def collate(readings: list[Reading], image_size: tuple[int, int]) -> Batch:
    """Stack what could be read and is (H, W) after the transform; in the worker, so that one tensor travels."""
    good = [(r.image, r.label, r.name) for r in readings if r.image is not None]
    bad = [(r.name, r.reason) for r in readings if r.image is None]
    labels = torch.tensor([label for _, label, _ in good], dtype=torch.int64)
    for image, _, name in good:
        if tuple(image.shape[-2:]) != image_size:
            return Batch(None, labels, bad, f"{name} is {_size(image.shape[-2:])}")
    return Batch(torch.stack([image for image, _, _ in good]) if good else None, labels, bad, "")


def read_item(item: Item, transform: Transform) -> Reading:
    """Read one image; only what its file can cause counts as a bad image, not a failing transform."""
    try:
        picture = item.read()
    except Exception as problem:  # Pillow's decoders raise nearly anything on damaged files
        reason = str(problem) or type(problem).__name__
        # Pillow names the file object that it was given, which tells nobody anything.
        reason = "it is no image" if reason.startswith("cannot identify image file") else reason
        return Reading(None, item.label, item.name, reason)
    return Reading(transform(picture), item.label, item.name, "", picture.width / picture.height)


def _size(shape: Sequence[int]) -> str:
    height, width = shape
    return f"{width}x{height}"
