"""Pictures in every format that patchslim reads, as class folders and as shards; and what a source gives of them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE, CLASSES = 40, 3
# The ending, Pillow's mode, and how to save.
KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("png", "RGB", {}),
    ("png", "P", {}),
    ("png", "I;16", {}),
    ("png", "RGBA", {}),
    ("jpg", "RGB", {"quality": 90}),
    ("jpeg", "L", {"progressive": True}),
    ("tiff", "RGB", {}),
    ("tif", "L", {"compression": "tiff_lzw"}),
    ("bmp", "RGB", {}),
    ("webp", "RGB", {"lossless": True}),
    ("gif", "P", {}),
    ("ppm", "RGB", {}),
)


def drawn() -> Iterator[tuple[str, int, bytes]]:
    """Name, label and bytes of pictures, no two of them alike."""
    random = np.random.RandomState(0)
    for number, (ending, mode, how) in enumerate(KINDS * 2):
        coarse = random.randint(0, 255, (5, 5, 3)).astype(np.uint8)
        picture = Image.fromarray(coarse).resize((SIDE, SIDE))
        if mode == "I;16":
            picture = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
        file = io.BytesIO()
        (picture if mode == "I;16" else picture.convert(mode)).save(
            file, Image.registered_extensions()[f".{ending}"], **how
        )
        yield f"{number:04d}.{ending}", number % CLASSES, file.getvalue()


def save_folder(folder: str) -> None:
    """A folder for each class."""
    for name, label, data in drawn():
        path = Path(folder) / f"class{label}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def save_shards(folder: str) -> None:
    """Two shards, a picture and its class under every key."""
    Path(folder).mkdir()
    pictures = list(drawn())
    half = len(pictures) // 2
    for number, own in enumerate((pictures[:half], pictures[half:])):
        with tarfile.open(Path(folder) / f"shard-{number}.tar", "w") as tar:
            for name, label, data in own:
                for member, content in ((name, data), (f"{name.partition('.')[0]}.cls", str(label).encode())):
                    about = tarfile.TarInfo(member)
                    about.size = len(content)
                    tar.addfile(about, io.BytesIO(content))


def label_ranges(path: Path) -> list[tuple[int, int]]:
    """Where a shard's labels lie: what is changed there is changed for everyone, as nothing checks it."""
    with tarfile.open(path) as tar:
        return [(own.offset_data, own.offset_data + own.size) for own in tar if own.name.endswith(".cls")]


def read_all(source: str) -> dict[str, Any]:
    """What a source gives: label and digest of every image, and how many it says it could not read."""
    import patchslim as ps

    images = ps.open_images(source, model=_model())
    found = []
    for pixels, labels in images.batches(4):
        for image, label in zip(pixels, labels.tolist(), strict=True):
            found.append([label, hashlib.sha256(image.numpy().tobytes()).hexdigest()[:16]])
    return {"images": found, "skipped": images.skipped}


def _model() -> Any:
    import timm
    import torch

    with torch.device("meta"):
        return timm.create_model("test_vit", img_size=32)
