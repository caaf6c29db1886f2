"""From bytes on disk to an 8-bit RGB picture, whatever the file's own colour mode."""

import io
import warnings
from typing import IO

import numpy as np
from PIL import Image

# Only the formats behind the endings we list: others, such as EPS, start outside programs on a file's say-so.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def read_file(path: str) -> Image.Image:
    """Decode the image file at `path` to RGB."""
    with open(path, "rb") as file:
        return decode(file)


def read_slice(path: str, offset: int, size: int) -> Image.Image:
    """Decode the image that lies in `size` bytes of the file at `path`, from `offset` on, to RGB."""
    with open(path, "rb") as file:
        file.seek(offset)
        return decode(io.BytesIO(file.read(size)))


def decode(file: IO[bytes]) -> Image.Image:
    """Decode an open image file to RGB; of an animation, the first frame."""
    with warnings.catch_warnings():
        # Pillow warns about odd metadata and big pictures; what matters here is only whether it decodes.
        warnings.simplefilter("ignore")
        with Image.open(file, formats=_FORMATS) as image:
            if min(image.size) < 2:
                raise ValueError(f"it is only {image.width}x{image.height} pixels")
            return to_rgb(image)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert a picture of any mode to RGB, dropping transparency and the lower half of 16-bit values."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, which have no agreed range")
    if image.mode.startswith("I"):
        # Pillow's own conversion clips 16-bit values at 255 in some versions, which turns the picture white.
        wide = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray((wide >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")
