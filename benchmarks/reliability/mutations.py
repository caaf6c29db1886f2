"""The first part: a file of something finished or interrupted is damaged, and then used."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from benchmarks.reliability import damage, edits
from benchmarks.reliability.acts import Act, acts_of
from benchmarks.reliability.children import Ended, run
from benchmarks.reliability.damage import BYTES, CANARY, TAR, WHOLE, Damage
from benchmarks.reliability.outcomes import of_images, sentence, tree, trouble
from benchmarks.reliability.pictures import label_ranges
from benchmarks.reliability.subjects import IT, Subject, subjects

# How often each kind of thing is drawn.
SHARES = {
    "run": 0.5,
    "search": 0.08,
    "recovery": 0.06,
    "sweep": 0.04,
    "comparison": 0.03,
    "exported": 0.04,
    "weights": 0.07,
    "hf": 0.04,
    "images": 0.07,
    "shards": 0.07,
}
LEAST, TIMES = 12.0, 20.0  # seconds, and undamaged runs' times, after which an act counts as hung
MEMORY = 3 * 2**30  # bytes that a child may take
# Of these a folder or nothing in a file's place is no damage: a source may hold any files.
SOURCES = ("images", "shards")
EXPORTED = (".onnx", ".pt2", ".xml", ".bin")
LOGS = ("log.jsonl",)
NAMED = (
    *("plan.json", "config.json", "metrics.json", "manifest.json"),
    *("model.safetensors", "steps.safetensors", "host.safetensors"),
)


def chance(seed: int, number: int) -> Random:
    """What decides everything in a case."""
    return Random(f"mutations {seed} {number}")


def drawn_subject(rng: Random, among: Sequence[str]) -> Subject:
    """What the case is about."""
    known = [own for own in subjects().values() if not among or own.name in among]
    kinds = {kind: share for kind, share in SHARES.items() if any(own.kind == kind for own in known)}
    (kind,) = rng.choices(list(kinds), list(kinds.values()))
    return rng.choice([own for own in known if own.kind == kind])


def needed(seed: int, among: Sequence[str], numbers: Iterable[int]) -> list[Subject]:
    """What has to be made for these cases."""
    drawn = {own.name for own in (drawn_subject(chance(seed, number), among) for number in numbers)}
    return [own for own in subjects().values() if own.name in drawn]


def damages(subject: Subject, path: Path) -> tuple[tuple[Damage, ...], ...]:
    """The groups of ways to damage a file; each is drawn as often."""
    own = edits.FORMATS.get(path.suffix, ())
    if path.stat().st_size == 0:
        return (tuple(way for way in WHOLE if way is not damage.another),)
    if subject.kind in SOURCES:
        whole = tuple(way for way in WHOLE if way not in (damage.folder, damage.missing, damage.another))
        return BYTES, BYTES, whole, (TAR if path.suffix == ".tar" else (edits.bomb,))
    return (BYTES, WHOLE, *((own, own) if own else ()))


def case(seed: int, among: Sequence[str], number: int, work: Path, place: Path) -> dict[str, Any]:
    """One case, in an empty folder: what was done, and what it came to."""
    rng = chance(seed, number)
    subject = drawn_subject(rng, among)
    shutil.copytree(subject.place(work), place, dirs_exist_ok=True, symlinks=True)
    name = rng.choice(_usual(rng, subject, subject.files(work)))
    acts = acts_of(subject)
    (act,) = rng.choices(acts, [own.weight for own in acts])
    path, before = place / IT / name, undamaged(subject, act, work)
    others = [own for own in _others(subject, work, name) if own.read_bytes() != path.read_bytes()]
    way = rng.choice(rng.choice(damages(subject, path)))
    how = way(rng, path, others)
    limit = max(LEAST, TIMES * before.seconds)
    after = run(partial(act.do, subject), place, limit, MEMORY)
    outcome = judge(subject, path, subject.place(work) / IT / name, before, after)
    gone = harmed(subject.place(work) / IT, place / IT, name) if outcome == "refused" else []
    about = {"subject": subject.name, "file": name, "way": way.__name__, "how": how, "act": act.name}
    return about | {
        "group": group_of(subject, name),
        "outcome": "lost" if gone else outcome,
        "said": sentence(after)[:400],
        "code": after.code,
        "seconds": round(after.seconds, 3),
        "mib": after.memory // 2**20,
        "extra": gone,
    }


def _usual(rng: Random, subject: Subject, names: list[str]) -> list[str]:
    """Three times in four a file that a thing of this kind is about; else any."""
    exported = subject.kind == "exported"
    own = [name for name in names if (name.endswith(EXPORTED) if exported else Path(name).name in NAMED)]
    return own if own and rng.random() < 0.75 else names


def _others(subject: Subject, work: Path, name: str) -> Iterator[Path]:
    """Files of the same name in other things that were made."""
    for own in subjects().values():
        path = own.place(work) / IT / name
        if own.name != subject.name and path.is_file():
            yield path
    suffix = Path(name).suffix
    yield from (subject.place(work) / IT / own for own in subject.files(work) if own != name and own.endswith(suffix))


def undamaged(subject: Subject, act: Act, work: Path) -> Ended:
    """How an act ends when nothing is damaged: done once, and kept."""
    name = f"{subject.name} {act.name}".replace(" ", "-")
    known = work / "before" / f"{name}.json"
    if known.exists():
        return Ended(**json.loads(known.read_text(encoding="utf-8")))
    known.parent.mkdir(exist_ok=True)
    place = known.parent / f"{name}-{os.getpid()}"  # another job may be at it, too
    shutil.copytree(subject.place(work), place)
    found = run(partial(act.do, subject), place, LEAST * 5)
    shutil.rmtree(place)
    if found.code:
        raise RuntimeError(f"{act.name} fails on an undamaged {subject.name}: {found.err}")
    draft = known.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(asdict(found)), encoding="utf-8")
    draft.replace(known)
    return found


def judge(subject: Subject, path: Path, pristine: Path, before: Ended, after: Ended) -> str:
    """What a case came to."""
    if any(path.parent.glob(f"{CANARY}*")):
        return "executed"
    bad = trouble(after, before)
    if bad is not None:
        return bad
    if after.code == 2:
        return "refused"
    if after.answer == before.answer:
        return "same"
    if subject.kind == "exported" and f"{path.name}: gone" in after.out:
        return "told"
    if subject.kind in SOURCES:
        own = path.suffix == ".tar" and only_labels(pristine, path)
        return "unknowable" if own else of_images(before.answer, after.answer, bool(after.err.strip()))
    if subject.kind == "hf" or (subject.kind == "weights" and like(pristine, path)):
        return "unknowable"
    return "other"


def harmed(pristine: Path, place: Path, name: str) -> list[str]:
    """Files beside a damaged one that are gone or others, though the command was refused.

    Its log may go on, and what a killed write left behind may go.
    """
    left = tree(place)
    free = {own for own in tree(pristine) if own in (name, *LOGS) or Path(own).name.startswith(".")}
    return [own for own, what in tree(pristine).items() if own not in free and left.get(own) != what]


def only_labels(before: Path, after: Path) -> bool:
    """Whether a tar differs in its labels alone."""
    old, new = before.read_bytes(), after.read_bytes()
    ranges = label_ranges(before)
    if len(old) != len(new):
        return False
    changed = np.flatnonzero(np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8))
    return all(any(start <= place < end for start, end in ranges) for place in changed.tolist())


def like(before: Path, after: Path) -> bool:
    """Whether a checkpoint is one that could have been meant: the same tensors, with other finite numbers."""
    if before.suffix != ".safetensors":
        return True
    try:
        old, new = load_file(before), load_file(after)
    except (SafetensorError, OSError, ValueError):
        return False
    finite = all(math.isfinite(float(np.abs(own.astype(np.float64)).max(initial=0))) for own in new.values())
    return finite and {name: own.shape for name, own in old.items()} == {name: own.shape for name, own in new.items()}


def group_of(subject: Subject, name: str) -> str:
    """The row of the table that a case counts in."""
    kinds = {
        "search": "interrupted search",
        "recovery": "interrupted recovery",
        "sweep": "sweep, finished or not",
        "comparison": "comparison, finished or not",
        "exported": "run with exported files",
        "weights": "user's checkpoint",
        "hf": "user's Hugging Face folder",
        "images": "folder of images",
        "shards": "shards",
    }
    file = name if name in NAMED else "other files"
    return kinds.get(subject.kind, f"run: {file}")
