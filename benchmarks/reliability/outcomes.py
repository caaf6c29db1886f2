"""What a case came to: one word, the same words for all three parts."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from benchmarks.reliability.children import Ended

LONGEST = 320  # characters of a sentence, with `patchslim: `
HUGE = 2**30  # bytes that nobody makes a digest of
GREED = 2.0  # times the memory of the undamaged run
# What may be: patchslim does as it promises.
FINE = {
    "same": "the same outputs",
    "refused": "refused with one sentence",
    "told": "went on, and said what it left out",
    "unknowable": "other numbers in a user's own file, which nobody can know",
    "resumed": "ended, and gone on with to the same bytes",
    "done": "a command line that was right",
    "working": "a command line that asks for more work than the limit, and ends when told to",
}
# What may not.
FAILURES = {
    "other": "other outputs without a word",
    "lost": "work or files lost",
    "left over": "files that should not be there any more",
    "traceback": "a traceback",
    "crash": "ended by a signal of its own",
    "no word": "told to end, and ended without a word",
    "hang": "past its time limit",
    "memory": "more than twice the memory",
    "executed": "code of a file was run",
    "sentence": "not one sentence: none, several, or one too long",
    "code": "another exit code than it should be",
}
SHOWN: dict[str, tuple[str, ...]] = {
    "the same, or done": ("same", "resumed", "done", "working"),
    "refused": ("refused",),
    "told": ("told",),
    "can't be known": ("unknowable",),
    "failures": tuple(FAILURES),
}
OF_MEMORY = re.compile(r"MemoryError|can't allocate memory|std::bad_alloc|Unable to allocate")


def sentence(ended: Ended) -> str:
    """The last line that it said on standard error."""
    lines = [line for line in ended.err.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def one_sentence(ended: Ended) -> bool:
    """Whether the last line is the only one of ours, and short."""
    said = re.findall(r"^patchslim: ", ended.err, flags=re.M)
    last = sentence(ended)
    return len(said) == 1 and last.startswith("patchslim: ") and len(last) <= LONGEST


def trouble(ended: Ended, usual: Ended | None = None) -> str | None:
    """What no command may come to, whatever it was asked; None where it ended as it should."""
    if ended.hung:
        return "hang"
    greedy = usual is not None and ended.memory > GREED * usual.memory
    if greedy or (OF_MEMORY.search(ended.err) and (usual is not None or ended.code != 2)):
        return "memory"
    if "Traceback (most recent call last)" in ended.err:
        return "traceback"
    if ended.code < 0:
        return "crash"
    if ended.code not in (0, 2):
        return "code"
    if ended.code == 2 and not one_sentence(ended):
        return "sentence"
    return None


def tree(place: Path) -> dict[str, str]:
    """Everything in a folder, and a digest of what it holds."""
    found = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            size = path.stat().st_size
            found[name] = str(size) if size > HUGE else hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder" if path.is_dir() else "fifo"
    return found


UNLABELLED = -1


def of_images(before: Any, after: Any, told: bool) -> str:
    """Images as read before and after: none may be lost, and none may take another's label, without a word."""
    known = {digest: label for label, digest in before["images"]}
    found = [(label, digest) for label, digest in after["images"]]
    moved = [label for label, digest in found if known.get(digest, label) != label]
    if any(label != UNLABELLED for label in moved) or (moved and not told):
        return "other"
    here, missing = {digest for _, digest in found}, len(known) - len(found)
    if missing > after["skipped"] and not told:
        return "other"
    if after["skipped"] or missing > 0 or moved:
        return "told"
    return "same" if here == known.keys() else "unknowable"
