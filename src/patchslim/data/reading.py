"""Reading images one by one, from bytes to tensors; bad ones become notes, and too many of them an error."""

import io
import os
import stat
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from patchslim.data.items import Item
from patchslim.data.transform import Transform
from patchslim.errors import DataError, first_words

# Only the formats behind the endings we list: others, such as EPS, start outside programs on a file's say-so.
MOST_PIXELS = 128_000_000  # of a picture; decoding and converting it takes up to 12 bytes for each
MOST_RATIO = 100  # of a picture's sides: resized by the shorter one, the longer one grows with it
MOST_BYTES = 2**30  # of a file
ORIENTATION = 0x0112  # the EXIF tag, and what a picture needs for each of its values
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def read_file(path: str) -> Image.Image:
    """Decode the image file at `path` to RGB."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no file")  # a FIFO would be waited for, and a device may have no end
    _check_bytes(status.st_size)
    with open(path, "rb") as file:
        return _decode(file)


def read_slice(path: str, offset: int, size: int) -> Image.Image:
    """Decode the image that lies in `size` bytes of the file at `path`, from `offset` on, to RGB."""
    _check_bytes(size)
    with open(path, "rb") as file:
        file.seek(offset)
        return _decode(io.BytesIO(file.read(size)))


def _check_bytes(size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"it has {size / 2**30:.1f} GiB, more than the {MOST_BYTES / 2**30:g} that are read")


def _check_sides(width: int, height: int) -> None:
    """Raise ValueError for sides that are no picture's: memory for decoding and resizing goes by them."""
    if min(width, height) < 2:
        raise ValueError(f"it is only {width}x{height} pixels")
    if width * height > MOST_PIXELS:
        raise ValueError(f"it has {width}x{height} pixels, more than the {MOST_PIXELS // 10**6} million that are read")
    if max(width, height) > MOST_RATIO * min(width, height):
        raise ValueError(f"it is {width}x{height} pixels: one side is more than {MOST_RATIO} times the other")


def _decode(file: IO[bytes]) -> Image.Image:
    """To 8-bit RGB, as it is looked at: turned as its EXIF data says, without transparency and the lower half of
    16-bit values; of an animation the first frame."""
    with warnings.catch_warnings():
        # Pillow warns about odd metadata and big pictures; what matters here is only whether it decodes.
        warnings.simplefilter("ignore")
        with Image.open(file, formats=_FORMATS) as image:
            _check_sides(*image.size)
            if image.mode == "F":
                raise ValueError("its pixels are floating-point numbers, which have no agreed range")
            if image.mode == "I" and image.format == "TIFF":  # others with this mode have 16 bits
                raise ValueError("its pixels are 32-bit or signed whole numbers, which have no agreed range")
            if image.mode.startswith("I"):
                # Pillow's own conversion clips 16-bit values at 255 in some versions, which turns the picture white.
                high = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)
                return _turned(Image.fromarray(high).convert("RGB"), image)
            return _turned(image.convert("RGB"), image)


def _turned(picture: Image.Image, image: Image.Image) -> Image.Image:
    """The picture as its orientation in the EXIF data of the decoded file says, where that can be read."""
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF data never kept a picture from being shown
        turn = None
    return picture if turn is None else picture.transpose(turn)


class Reading(NamedTuple):
    """One image as read: the (C, H, W) tensor or, for a bad one, None and the reason; `ratio` is the picture's width
    over its height."""

    image: Tensor | None
    label: int
    name: str
    reason: str
    ratio: float = 1.0


def read_item(item: Item, transform: Transform) -> Reading:
    """Read one image; whatever fails on the way makes it a bad one, and the tally says how many are too many."""
    picture = None
    try:
        picture = item.read()
        return Reading(transform(picture), item.label, item.name, "", picture.width / picture.height)
    except Exception as problem:  # Pillow's decoders raise nearly anything on damaged files, and so do transforms
        reason = first_words(problem)
        if picture is not None:
            reason = f"its transform fails: {reason}"
        # Pillow names the file object that it was given, which tells nobody anything.
        reason = "it is no image" if reason.startswith("cannot identify image file") else reason
        return Reading(None, item.label, item.name, reason)


class ItemDataset(Dataset[Reading]):
    """Reads items by index."""

    def __init__(self, items: Sequence[Item], transform: Transform) -> None:
        self.items, self.transform = items, transform

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Reading:
        return read_item(self.items[index], self.transform)


class Batch(NamedTuple):
    """A batch as it leaves a worker: (B, C, H, W) images, (B,) labels, and the bad ones as (name, reason).

    `images` is None where none could be read, and where they differ in size: then `mismatch` says so. `known` says of
    all that were asked for whether they could be read, `ratios` how wide they are against their height.
    """

    images: Tensor | None
    labels: Tensor
    bad: list[tuple[str, str]]
    mismatch: str
    known: list[bool]
    ratios: list[float]


def collate(readings: list[Reading], image_size: tuple[int, int]) -> Batch:
    """Stack what could be read and is (H, W) after the transform; in the worker, so that one tensor travels."""
    good = [(r.image, r.label, r.name) for r in readings if r.image is not None]
    odd = [(image.shape, name) for image, _, name in good if tuple(image.shape[-2:]) != image_size]
    return Batch(
        torch.stack([image for image, _, _ in good]) if good and not odd else None,
        torch.tensor([label for _, label, _ in good], dtype=torch.int64),
        [(r.name, r.reason) for r in readings if r.image is None],
        "".join(f"{name} is {shape[-1]}x{shape[-2]}" for shape, name in odd[:1]),
        [r.image is not None for r in readings],
        [r.ratio for r in readings],
    )


@dataclass
class Tally:
    """Counts the good and bad images of one pass and ends it when too many are bad."""

    name: str
    total: int
    good: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)

    def add(self, good: int, bad: Sequence[tuple[str, str]]) -> None:
        """Count a batch; DataError once more than a tenth of the images are bad."""
        self.good += good
        self.bad += bad
        if len(self.bad) > max(5, self.total / 10):
            raise DataError(
                f"{len(self.bad)} of the first {self.good + len(self.bad)} images (of {self.total}) "
                f"in {self.name} can't be read, {self._first()}; remove or repair the bad ones."
            )

    def nothing_read(self) -> DataError:
        """What to raise when no image was good."""
        return DataError(
            f"None of the {self.total} images in {self.name} can be read, {self._first()}; give other images."
        )

    def _first(self) -> str:
        name, reason = self.bad[0]
        return f"the first being {name} ({reason})"
