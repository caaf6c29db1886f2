"""`open_images`: from the name of a source to images ready for a model."""

from pathlib import Path

from torch import nn

from patchslim.data.digits import Split, list_digits
from patchslim.data.folder import item_of, list_folder
from patchslim.data.images import Images
from patchslim.data.items import Listing, choose, fingerprint, is_image_name
from patchslim.data.shards import is_shard_pattern, list_shards
from patchslim.data.transform import transform_for
from patchslim.errors import DataError


def open_images(
    source: str | Path,
    *,
    model: nn.Module | None = None,
    limit: int | None = None,
    seed: int = 0,
    split: Split = "train",
    workers: int = 0,
) -> Images:
    """Open a folder, WebDataset shards or the digits as images for a model.

    `source` is a folder (class folders give labels, loose images have none), a .tar path, brace pattern or
    glob of shards, or `digits` (with `split`; also `digits:train`, `digits:test`). Images are resized,
    cropped and normalised by timm's evaluation transform, at the real image size of the model. Without
    a model nothing is resized: the images must all have one size and become floats from 0 to 1.

    `limit` draws a sample with `seed`, kept in the source's sorted order; without it, or when it is larger
    than the source, all images are taken. `workers` is the number of reading processes.
    """
    if workers < 0:
        raise DataError(f"The number of workers is {workers}; give 0 or more.")
    if split not in ("train", "test"):
        raise DataError(f"The split {split!r} isn't known; use 'train' or 'test'.")
    if not str(source).strip():
        raise DataError("The image source is empty; give a folder, .tar shards or digits.")
    # A Path can't keep the './' that tells a folder called digits from the set; if it is there, it is meant.
    named = _list_named(str(source), split) if isinstance(source, str) or not source.exists() else None
    listing = named or _list_path(str(source))
    chosen = choose(len(listing.items), limit, seed)
    return Images(
        str(source),
        [listing.items[index] for index in chosen],
        transform_for(model),
        fingerprint=fingerprint(listing.items, chosen),
        classes=listing.classes,
        workers=workers,
        mirrors=listing.mirrors,
    )


def _list_named(text: str, split: Split) -> Listing | None:
    if text.startswith("hf:"):
        raise DataError(
            f"Hugging Face datasets such as {text} can't be read yet; "
            "export it as a folder of images or as WebDataset shards and give that."
        )
    parts: dict[str, Split] = {"digits": split, "digits:train": "train", "digits:test": "test"}
    if text in parts:
        return list_digits(parts[text])
    if text.startswith("digits:"):
        raise DataError(f"{text} isn't known; use digits, digits:train or digits:test.")
    return None


def _list_path(text: str) -> Listing:
    path = Path(text)
    if path.is_dir():
        return list_folder(path)
    if is_shard_pattern(text):
        return list_shards(text)
    if path.exists() and is_image_name(path.name):
        return Listing((item_of(path.parent, (path.name,), -1),))
    if path.exists():
        raise DataError(f"{text} is neither a folder, a .tar file nor an image; give one of these.")
    raise DataError(f"{text} doesn't exist; give a folder of images, .tar shards or digits.")
