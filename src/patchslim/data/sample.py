"""The seeded sample, and the fingerprint that says which images a result came from."""

import hashlib
import json
from collections.abc import Sequence

import torch

from patchslim.data.items import Item
from patchslim.errors import DataError


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
    digest = hashlib.sha256()
    for item in sorted(items, key=lambda item: item.name):
        digest.update(_line([item.name, item.size, item.label, item.content]))
    digest.update(_line(["sample", [items[index].name for index in chosen]]))
    return digest.hexdigest()


def _line(values: list[object]) -> bytes:
    # JSON keeps the fields apart whatever is in the names, and escapes names that aren't valid UTF-8.
    return json.dumps(values).encode("ascii") + b"\n"
