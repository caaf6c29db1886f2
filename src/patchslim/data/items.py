"""What every kind of source comes down to: a list of named images that can be read one by one."""

from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

IMAGE_ENDINGS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
)


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

    `mirrors` says whether an image's mirror image shows the same thing; that of a digit does not.
    """

    items: tuple[Item, ...]
    classes: int | None = None
    mirrors: bool = True


def is_image_name(name: str) -> bool:
    """Say whether a file name ends like an image that patchslim reads."""
    return name.lower().endswith(IMAGE_ENDINGS)
