"""What every kind of source comes down to: named images that can be read one by one, samples and a hash of them."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image

from patchslim.errors import DataError

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True, slots=True)
class Item:
    """One image that has not been read yet.

    `name` is relative to the source, `size` is in bytes, `label` is -1 where there is none. `read` gives the
    image as 8-bit RGB, or raises whatever the decoder raises. `content` stands for the pixels in the
    fingerprint where name and size say nothing about them.
    """

    name: str
    size: int
    label: int
    read: Callable[[], Image.Image]
    content: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """All images of a source in their own sorted order, and the number of class folders if it has any.

    `mirrors` says whether an image's mirror image shows the same thing; that of a digit does not. `note` says how the
    names of class folders are read, where that could be done otherwise.
    """

    items: tuple[Item, ...]
    classes: int | None = None
    mirrors: bool = True
    note: str = ""


def is_image_name(name: str) -> bool:
    """Say whether a file name ends like an image that patchslim reads."""
    return name.lower().endswith(IMAGE_ENDINGS)


def choose(count: int, limit: int | None, seed: int) -> list[int]:
    """Choose `limit` of `count` indices at random, in rising order; all of them if there are no more."""
    if limit is not None and limit <= 0:
        raise DataError(f"The limit is {limit}, but at least one image is needed; give a limit of 1 or more.")
    if limit is None or limit >= count:
        return list(range(count))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:limit].tolist())


def fingerprint(items: Sequence[Item], chosen: Sequence[int]) -> str:
    """Hash the names, sizes and labels of all images and the names of the chosen ones, as hex sha256.

    Pixels are not read, so a change that keeps a file's name and size goes unseen.
    """
    lines: list[list[object]] = [
        [item.name, item.size, item.label, item.content] for item in sorted(items, key=lambda item: item.name)
    ]
    digest = hashlib.sha256()
    for line in [*lines, ["sample", [items[index].name for index in chosen]]]:
        # JSON keeps the fields apart whatever is in the names, and escapes names that aren't valid UTF-8.
        digest.update(json.dumps(line).encode("ascii") + b"\n")
    return digest.hexdigest()
