"""`open_images`: from the name of a source to images ready for a model."""

from pathlib import Path

from torch import nn

from patchslim.data.digits import Split
from patchslim.data.images import Images
from patchslim.data.listing import list_source
from patchslim.data.sample import choose, fingerprint
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
    listing = list_source(source, split)
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
