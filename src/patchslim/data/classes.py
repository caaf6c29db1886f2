"""Which label a class has by its name, that of its folder or what a shard's .cls file says."""

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from patchslim.errors import DataError, first_words

NUMBERS, IMAGENET = "numbers", "imagenet"
HOW = f"a file with one class name per line, names with commas between, {NUMBERS} or {IMAGENET}"
MOST_BYTES = 2**24  # of a file with names
ClassNames: TypeAlias = str | os.PathLike[str] | Sequence[str]


@dataclass(frozen=True)
class Classes:
    """The names of all classes, the place of each its label; None where the names are the labels in figures."""

    names: tuple[str, ...] | None
    source: str  # where they are from, for sentences

    def __len__(self) -> int:
        return len(self.names or ())

    def labels(self, names: Collection[str]) -> dict[str, int]:
        """The label of each of some names; DataError for a name that is none of the classes."""
        known = None if self.names is None else {name: label for label, name in enumerate(self.names)}
        labels = {}
        for name in sorted(names):
            # Longer numbers don't fit the 64 bits of a label.
            label = known.get(name) if known is not None else int(name) if re.fullmatch(r"\d{1,18}", name) else None
            if label is None:
                what = "no number" if known is None else f"none of the {len(known)} classes"
                raise DataError(f"The class {name!r} of the images is {what} that {self.source} means; see --classes.")
            labels[name] = label
        if len(set(labels.values())) < len(labels):
            raise DataError(f"Two classes of the images are the same number in {self.source}; rename one.")
        return labels


def read_classes(given: ClassNames) -> Classes:
    """The classes in the order of their labels: names, a file of them, `numbers` or `imagenet`."""
    if given == NUMBERS:
        return Classes(None, NUMBERS)
    if given == IMAGENET:
        return Classes(tuple(imagenet()), IMAGENET)
    if isinstance(given, (str, os.PathLike)):
        text = os.fspath(given)
        words = text.split(",") if "," in text and not os.path.exists(text) else _lines(text)
        source = "the list" if "," in text and not os.path.exists(text) else text
    elif isinstance(given, Sequence) and all(isinstance(name, str) for name in given):
        words, source = list(given), "the list"
    else:
        raise DataError(f"The classes are a {type(given).__name__}; give {HOW}.")
    names = tuple(name.strip() for name in words)
    if not all(names) or len(set(names)) < len(names) or not names:
        odd = next((name for name in names if names.count(name) > 1), "")
        what = f"{odd!r} more than once" if odd else "a name that is empty" if names else "no names"
        raise DataError(f"The classes in {source} have {what}; give each class one name.")
    return Classes(names, source)


def _lines(path: str) -> list[str]:
    if not os.path.isfile(path):
        raise DataError(f"There is no file {path} with the names of classes; give {HOW}.")
    if os.path.getsize(path) > MOST_BYTES:
        raise DataError(f"{path} is too long for the names of classes; give {HOW}.")
    try:
        return Path(path).read_text("utf-8-sig").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path} can't be read as text ({first_words(problem)}); give {HOW}.") from None


def imagenet() -> list[str]:
    """The WordNet names of ImageNet-1k's classes in their order."""
    from timm.data import ImageNetInfo  # late: slow to import, and few folders need it

    return [str(name) for name in ImageNetInfo().label_names()]


def labels_of(names: Collection[str], filled: Collection[str]) -> tuple[dict[str, int], str]:
    """Give each class folder its label, and a sentence where other libraries would give it another.

    `names` are all class folders, `filled` those that hold images. WordNet names are ImageNet's. All others have their
    place in natural order, as in timm: 2 comes before 10. An empty folder keeps its place, but a stray one (`__MACOSX`)
    must not hide that the others are ImageNet's or numbers.
    """
    if all(re.fullmatch(r"n\d{8}", name) for name in filled):
        index = {name: label for label, name in enumerate(imagenet())}
        if set(filled) <= index.keys():
            return {name: index[name] for name in filled}, ""
    numbers = all(re.fullmatch(r"\d+", name) for name in filled)
    ordered = sorted((name for name in names if name.isdecimal() or not numbers), key=natural_key)
    note = ""
    if numbers:
        note = f"class folders are numbers: {ordered[0]} … {ordered[-1]} are read as labels 0 … {len(ordered) - 1}"
    elif ordered != sorted(ordered):
        text = sorted(ordered)
        place = next(place for place, name in enumerate(ordered) if text[place] != name)
        note = f"class folders are read in natural order: label {place} is {ordered[place]}, and not {text[place]}"
    return {name: label for label, name in enumerate(ordered)}, note and f"{note}, as timm does; see --classes."


def natural_key(name: str) -> tuple[list[str | int], str]:
    """By numbers where names have some, and in any case; like timm's, but never a tie."""
    parts: list[str | int] = list(re.split(r"(\d+)", name.lower()))
    parts[1::2] = map(int, parts[1::2])
    return parts, name
