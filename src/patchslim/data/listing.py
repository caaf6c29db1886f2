"""Finds out which kind of source a text or path names, and lists its images."""

from pathlib import Path

from patchslim.data.digits import Split, list_digits
from patchslim.data.folder import item_of, list_folder
from patchslim.data.items import Listing, is_image_name
from patchslim.data.shards import is_shard_pattern, list_shards
from patchslim.errors import DataError


def list_source(source: str | Path, split: Split) -> Listing:
    """List the images of any source; `split` only matters for the digits."""
    if split not in ("train", "test"):
        raise DataError(f"The split {split!r} isn't known; use 'train' or 'test'.")
    text = str(source)
    if not text.strip():
        raise DataError("The image source is empty; give a folder, .tar shards or digits.")
    # A Path can't keep the './' that tells a folder called digits from the set; if it is there, it is meant.
    named = _list_named(text, split) if isinstance(source, str) or not source.exists() else None
    return named or _list_path(text)


def _list_named(text: str, split: Split) -> Listing | None:
    if text.startswith("hf:"):
        raise DataError(
            f"Hugging Face datasets such as {text} can't be read yet; "
            "export it as a folder of images or as WebDataset shards and give that."
        )
    if text == "digits":
        return list_digits(split)
    if text == "digits:train":
        return list_digits("train")
    if text == "digits:test":
        return list_digits("test")
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
