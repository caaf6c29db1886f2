"""Images in a folder: one folder per class, or flat and unlabelled."""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from patchslim.data.items import Item, Listing, is_image_name
from patchslim.data.reading import read_file
from patchslim.errors import DataError


def list_folder(folder: Path) -> Listing:
    """List the images of a folder.

    Sub-folders are classes as long as no image lies loose beside them; otherwise everything below the folder
    is taken, without labels.
    """
    found = [relative for relative in _walk(folder, (), ()) if is_image_name(relative[-1])]
    if not found:
        raise DataError(f"There is no image in the folder {folder}; give a folder that holds image files.")
    found.sort()
    if any(len(relative) == 1 for relative in found):
        return Listing(tuple(item_of(folder, relative, -1) for relative in found))
    names = sorted(entry.name for entry in _entries(folder) if entry.is_dir())
    labels = class_labels(names, {relative[0] for relative in found})
    return Listing(tuple(item_of(folder, relative, labels[relative[0]]) for relative in found), len(names))


def class_labels(names: list[str], filled: set[str]) -> dict[str, int]:
    """Give each class folder its label.

    `names` are all class folders, `filled` those that hold images. An empty folder keeps its place in the
    sorted order, but a stray one (`__MACOSX`) must not hide that the others are ImageNet's or numbers.
    """
    if all(re.fullmatch(r"n\d{8}", name) for name in filled):
        from timm.data import ImageNetInfo  # late: slow to import, and few folders need it

        index = {str(wnid): i for i, wnid in enumerate(ImageNetInfo().label_names())}
        if filled <= index.keys():
            return {name: index[name] for name in filled}
    # Longer numbers don't fit the 64 bits of a label.
    if all(name.isascii() and name.isdigit() and len(name) <= 18 for name in filled):
        return {name: int(name) for name in filled}
    return {name: index for index, name in enumerate(sorted(names))}


def item_of(folder: Path, relative: tuple[str, ...], label: int) -> Item:
    """One file below a folder."""
    path = os.path.join(folder, *relative)
    try:
        size = os.stat(path).st_size
    except OSError:
        size = 0  # a link to nowhere: it stays listed, so that it is counted as a bad image
    return Item("/".join(relative), size, label, partial(read_file, path))


def _walk(folder: Path, inside: tuple[str, ...], above: tuple[Path, ...]) -> Iterator[tuple[str, ...]]:
    """Yield every visible file below the folder as the parts of its relative path."""
    real = folder.resolve()
    if real in above:
        return  # a linked folder that contains itself
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _walk(Path(entry.path), (*inside, entry.name), (*above, real))
        else:
            yield (*inside, entry.name)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as problem:
        raise DataError(
            f"The folder {folder} can't be read ({problem.strerror}); check that it exists and may be read."
        ) from problem
