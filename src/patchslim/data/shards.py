"""Images in WebDataset shards: plain tar files, indexed once and then read by seeking.

The webdataset library is not used on purpose: its decoders unpickle members by their extension, so a shard
from elsewhere could run code, and it streams, while a seeded sample needs random access.
"""

import glob
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from functools import partial

from braceexpand import braceexpand

from patchslim.data.classes import Classes
from patchslim.data.items import Item, Listing, is_image_name
from patchslim.data.reading import read_slice
from patchslim.errors import DataError, first_words

_MOST_SHARDS = 100_000
_MOST_WORDS = 1024  # bytes of a .cls file
_CHUNK = 2**20
_MOST_PADDING = 2**26  # bytes that are read after the end mark
_MOST_ZEROS = 2 * tarfile.BLOCKSIZE + tarfile.RECORDSIZE  # at the end: its mark, and what fills a record


def is_shard_pattern(source: str) -> bool:
    """Say whether a source names shards: a .tar path, a brace pattern or a glob with a star."""
    return source.lower().endswith(".tar") or "{" in source or "*" in source


def list_shards(source: str, classes: Classes | None = None) -> Listing:
    """List the images of every shard that the pattern names, shards and members in sorted order."""
    shards = [source] if os.path.isfile(source) else sorted(set(_expand(source)))
    root = os.path.commonpath([os.path.dirname(os.path.abspath(shard)) for shard in shards])
    items, odd = list[Item](), Counter[str]()
    for shard in shards:
        name = os.path.relpath(os.path.abspath(shard), root)
        images, said, zeros = _index(shard)
        labels = _labels(shard, said, classes)
        odd["labels without an image"] += len(said.keys() - images.keys())
        odd["images without a label"] += len(images.keys() - said.keys()) if said else 0
        odd["bytes of zeros where members may have been"] += zeros if zeros > _MOST_ZEROS else 0
        if not images:
            raise DataError(f"There is no image in the shard {shard}; leave it out or give another.")
        for key, member in sorted(images.items()):
            read = partial(read_slice, shard, member.offset_data, member.size)
            items.append(Item(f"{name}/{member.name}", member.size, labels.get(key, -1), read))
    told = " and ".join(f"{count} {what}" for what, count in odd.items() if count)
    note = told and f"{source} has {told}; where that is not meant to be, the shards are damaged."
    return Listing(tuple(items), len(classes or ()) or None, note=note)


def _expand(source: str) -> Iterator[str]:
    # braceexpand builds a whole range at once: one with too many zeros would fill the memory.
    for first, last in re.findall(r"\{(-?\d+)\.\.(-?\d+)", source):
        if abs(int(last) - int(first)) >= _MOST_SHARDS:
            raise DataError(f"The range in {source} is longer than {_MOST_SHARDS} shards; shorten it.")
    try:
        for pattern in braceexpand(source):
            yield from _matches(pattern)
    except ValueError as problem:
        raise DataError(
            f"The braces in {source} don't match; write it like shards-{{0000..0003}}.tar, "
            "with a backslash before a brace that is part of a name."
        ) from problem


def _matches(pattern: str) -> list[str]:
    if not pattern.lower().endswith(".tar"):
        raise DataError(f"{pattern} doesn't end in .tar; braces and stars can only name WebDataset shards.")
    # Stars alone stand for something: brackets are more often part of a folder's name than a choice.
    paths = glob.glob(re.sub(r"[\[?]", r"[\g<0>]", pattern), recursive=True) if "*" in pattern else [pattern]
    if not paths:
        raise DataError(f"No shard matches {pattern}; check the path.")
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise DataError(f"The shard {missing[0]} doesn't exist; check the path and the range of numbers.")
    return paths


def _index(path: str) -> tuple[dict[str, tarfile.TarInfo], dict[str, str], int]:
    """Go through a tar once: the image member and the words of the .cls file of each key, and zeros at the end."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    try:
        # "r:" takes plain tars only: there's no seeking in a compressed one.
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                folder, base = os.path.split(member.name)
                stem, _, ending = base.partition(".")
                key = os.path.join(folder, stem)
                if not member.isreg() or member.issparse() or base.startswith("."):
                    continue  # links, folders and hidden files are passed over unread
                if ending.lower() == "cls":
                    labels[key] = _read_words(tar, member)
                elif is_image_name(base):
                    first = images.setdefault(key, member)  # of several images with one key, the first in the shard
                    if first is not member and first.name == member.name:
                        raise DataError(
                            f"The shard {path} holds {member.name} twice; write it again with unique names."
                        )
            zeros = _check_end(path, tar.offset)
    except DataError:
        raise
    except Exception as problem:  # tarfile raises nearly anything on damaged headers
        raise DataError(
            f"The shard {path} can't be read as an uncompressed tar file ({first_words(problem)}); "
            "it may be damaged or cut short, so fetch or write it again."
        ) from problem
    return images, labels, zeros


def _read_words(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    return (file.read(_MOST_WORDS) if file is not None else b"").decode("utf-8", "replace").strip()


def _labels(path: str, said: dict[str, str], classes: Classes | None) -> dict[str, int]:
    """The label of each key: its class number, or the place of its class's name where these are known."""
    if classes is not None and classes.names is not None:
        known = classes.labels(set(said.values()))
        return {key: known[words] for key, words in said.items()}
    for key, words in said.items():
        if not words.removeprefix("-").isdecimal() or len(words) > 18:
            raise DataError(
                f"{key}.cls in the shard {path} is no class number; write the class index as text, "
                "or say with --classes which names the classes have."
            )
    return {key: max(int(words), -1) for key, words in said.items()}


def _check_end(path: str, offset: int) -> int:
    """Make sure that the tar ends with its end mark, and that zeros alone follow: so many bytes.

    Tarfile takes one that was cut short or has a hole for complete, and passes over another archive put behind it.
    """
    with open(path, "rb") as file:
        file.seek(offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError(f"no end mark after {offset} bytes")
        if os.path.getsize(path) - offset > _MOST_PADDING:
            raise DataError(
                f"The shard {path} goes on for more than {_MOST_PADDING >> 20} MiB after its end mark; "
                "it is damaged, so fetch or write it again."
            )
        while more := file.read(_CHUNK):
            if more.strip(b"\0"):
                raise DataError(
                    f"The shard {path} goes on after its end mark at byte {offset}, so members would be lost: it is "
                    "damaged, or several archives put together; give these one by one, or write it again."
                )
        return file.tell() - offset
