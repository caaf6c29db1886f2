"""`open_images`: from the name of a source to images ready for a model."""

import os
import warnings
from numbers import Integral
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.data.classes import Classes, ClassNames, read_classes
from patchslim.data.digits import Split, list_digits
from patchslim.data.folder import item_of, list_folder
from patchslim.data.images import Images
from patchslim.data.items import Listing, choose, fingerprint, is_image_name
from patchslim.data.shards import is_shard_pattern, list_shards
from patchslim.data.transform import transform_for
from patchslim.errors import DataError, PatchslimWarning


def open_images(
    source: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    limit: int | None = None,
    seed: int = 0,
    split: Split = "train",
    workers: int = 0,
    classes: ClassNames | None = None,
) -> Images:
    """Open a folder, WebDataset shards or the digits as images for a model.

    `source` is a folder (class folders give labels, loose images have none), a .tar path, brace pattern or
    glob of shards, or `digits` (with `split`; also `digits:train`, `digits:test`). Images are resized,
    cropped and normalised by timm's evaluation transform, at the real image size of the model. Without
    a model nothing is resized: the images must all have one size and become floats from 0 to 1.

    `limit` draws a sample with `seed`, kept in the source's sorted order; without it, or when it is larger
    than the source, all images are taken. `workers` is the number of reading processes.

    `classes` names the classes in the order of their labels: a list, a file with one name per line, or `numbers` where
    the folders' names are the labels. Without it, folders with ImageNet's names have its labels, and others their place
    in natural order, as in timm.
    """
    _check(source, model, split, limit=limit, seed=seed, workers=workers)
    known = None if classes is None else read_classes(classes)
    # A Path can't keep the './' that tells a folder called digits from the set; if it is there, it is meant.
    text = os.fspath(source)
    named = isinstance(source, str) or not os.path.exists(source)
    listing = (_list_named(text, split, known) if named else None) or _list_path(text, known)
    if listing.note:
        warnings.warn(listing.note, PatchslimWarning, stacklevel=2)
    chosen = choose(len(listing.items), limit, seed)
    return Images(
        text,
        [listing.items[index] for index in chosen],
        transform_for(model),
        fingerprint=fingerprint(listing.items, chosen),
        classes=listing.classes,
        workers=workers,
        mirrors=listing.mirrors,
    )


def _check(source: Any, model: Any, split: Any, **numbers: Any) -> None:
    """Raise DataError for arguments that are none."""
    if not isinstance(source, (str, os.PathLike)) or isinstance(os.fspath(source), bytes):
        raise DataError(
            f"A {type(source).__name__} names no images; give a folder, .tar shards or digits. Tensors, loaders and "
            "datasets go to slim, finetune, compare and export as they are."
        )
    if not os.fspath(source).strip() or "\0" in os.fspath(source):
        raise DataError("The image source is empty, or no name of a file; give a folder, .tar shards or digits.")
    if model is not None and not isinstance(model, nn.Module):
        raise DataError(f"The model is a {type(model).__name__}; give the network that the images are for.")
    if split not in ("train", "test"):
        raise DataError(f"The split {split!r} isn't known; use 'train' or 'test'.")
    for name, number in numbers.items():
        if number is None and name == "limit":
            continue
        if not isinstance(number, Integral) or not 0 <= int(number) < 2**63:
            raise DataError(f"The {name} is {number!r}; give a whole number from 0 on.")


def _list_named(text: str, split: Split, classes: Classes | None) -> Listing | None:
    if text.startswith("hf:"):
        raise DataError(
            f"Hugging Face datasets such as {text} can't be read yet; "
            "export it as a folder of images or as WebDataset shards and give that."
        )
    parts: dict[str, Split] = {"digits": split, "digits:train": "train", "digits:test": "test"}
    if text in parts:
        if classes is not None:
            raise DataError("The digits have labels of their own; leave the classes out.")
        return list_digits(parts[text])
    if text.startswith("digits:"):
        raise DataError(f"{text} isn't known; use digits, digits:train or digits:test.")
    return None


def _list_path(text: str, classes: Classes | None) -> Listing:
    path = Path(text)
    if os.path.isdir(text):
        return list_folder(path, classes)
    if is_shard_pattern(text):
        return list_shards(text, classes)
    if os.path.exists(text) and is_image_name(path.name):
        return Listing((item_of(path.parent, (path.name,), -1),))
    if os.path.exists(text):
        raise DataError(f"{text} is neither a folder, a .tar file nor an image; give one of these.")
    raise DataError(f"{text} doesn't exist; give a folder of images, .tar shards or digits.")
