"""Images in a folder: one folder per class, or flat and unlabelled."""

import errno
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from patchslim.data.classes import Classes, labels_of
from patchslim.data.items import Item, Listing, is_image_name
from patchslim.data.reading import read_file
from patchslim.errors import DataError

Parts = tuple[str, ...]  # of a path, relative to the folder


def list_folder(folder: Path, classes: Classes | None = None) -> Listing:
    """List the images of a folder.

    Sub-folders are classes as long as no image lies loose beside them; otherwise everything below the folder
    is taken, without labels.
    """
    found = sorted(_images(folder))
    if not found:
        raise DataError(f"There is no image in the folder {folder}; give a folder that holds image files.")
    if any(len(relative) == 1 for relative in found):
        return Listing(tuple(item_of(folder, relative, -1) for relative in found))
    filled = {relative[0] for relative in found}
    if classes is None:
        names = {entry.name for entry in _entries(folder) if _identity(entry) is not None}
        labels, note = labels_of(names | filled, filled)
        count: int | None = len(names)
    else:
        labels, note, count = classes.labels(filled), "", len(classes) or None
    items = tuple(item_of(folder, relative, labels[relative[0]]) for relative in found)
    return Listing(items, count, note=note and f"{folder}: {note}")


def item_of(folder: Path, relative: Parts, label: int) -> Item:
    """One file below a folder."""
    path = os.path.join(folder, *relative)
    try:
        status = os.stat(path)
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    except OSError:
        size = 0  # a link to nowhere or to itself: it stays listed, so that it is counted as a bad image
    return Item("/".join(relative), size, label, partial(read_file, path))


def _images(folder: Path) -> Iterator[Parts]:
    """Yield every visible image file below the folder, as the parts of its path.

    Linked folders are followed, but each folder is entered once per class, so that links in circles come to an end.
    Folders too deep to be entered are yielded like files, so that they are counted as bad.
    """
    root, entered, waiting = _identity(folder), set[tuple[str, int, int]](), list[Parts]([()])
    while waiting:
        inside = waiting.pop()
        for entry in _entries(os.path.join(folder, *inside)):
            relative = (*inside, entry.name)
            identity = _identity(entry)
            if identity is None:
                if is_image_name(entry.name) or _is_too_deep(entry):
                    yield relative
            elif identity != root and (mark := (relative[0], *identity)) not in entered:
                entered.add(mark)
                waiting.append(relative)


def _identity(path: Path | os.DirEntry[str]) -> tuple[int, int] | None:
    """What tells a folder from all others, whatever its path; None for what is no folder or can't be entered."""
    try:
        if not path.is_dir():
            return None
        status = os.stat(path)
    except OSError:
        return None  # such as a link to itself
    return status.st_dev, status.st_ino


def _is_too_deep(entry: os.DirEntry[str]) -> bool:
    try:
        os.lstat(entry.path)
    except OSError as problem:
        return problem.errno == errno.ENAMETOOLONG
    return False


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as problem:
        raise DataError(
            f"The folder {folder} can't be read ({problem.strerror}); check that it exists and may be read."
        ) from problem
