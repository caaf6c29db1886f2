"""scikit-learn's handwritten digits: small, labelled, and on the disk with the library."""

import hashlib
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from patchslim.data.items import Item, Listing
from patchslim.errors import DataError

Split = Literal["train", "test"]

_TEST_IMAGES = 500
_SPLIT_SEED = 1797  # fixed: the held-out part must be the same in every run, whatever the sample's seed


def list_digits(split: Split) -> Listing:
    """List one part of the 1797 digits as 32x32 pictures, 500 in the test part, in the set's own order."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as problem:
        raise DataError(
            "The digits need scikit-learn, which isn't installed; run: pip install 'patchslim[digits]'"
        ) from problem
    bunch: Any = load_digits()
    held_out, items = held_out_indices(bunch.target), []
    for index, values in enumerate(bunch.images):  # 8x8
        if (index in held_out) == (split == "test"):
            read, content = partial(digit_picture, values), hashlib.sha256(values.tobytes()).hexdigest()
            items.append(Item(f"digit-{index:04d}", values.nbytes, int(bunch.target[index]), read, content))
    return Listing(tuple(items), mirrors=False)


def held_out_indices(labels: NDArray[np.int64]) -> set[int]:
    """Choose the 500 test images, each class with its share of them."""
    classes, counts = np.unique(labels, return_counts=True)
    shares = counts * _TEST_IMAGES / len(labels)
    quotas = np.floor(shares).astype(int)
    # The places that rounding down left over go to the classes that lost most by it.
    for index in np.argsort(quotas - shares, kind="stable")[: _TEST_IMAGES - int(quotas.sum())]:
        quotas[index] += 1
    # RandomState, because numpy promises that its numbers never change.
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(labels))
    held_out: set[int] = set()
    for label, quota in zip(classes, quotas, strict=True):
        held_out.update(int(i) for i in order[labels[order] == label][:quota])
    return held_out


def digit_picture(values: NDArray[np.float64]) -> Image.Image:
    """Turn 8x8 values from 0 to 16 into a 32x32 RGB picture."""
    grey = Image.fromarray(np.rint(values * (255 / 16)).astype(np.uint8))
    return grey.resize((32, 32), Image.Resampling.BICUBIC).convert("RGB")
