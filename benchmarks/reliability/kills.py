"""The second part: a command is ended at a random moment, and gone on with: the same bytes, and nothing beside them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.reliability.acts import logits, weights
from benchmarks.reliability.children import Child, Ended, Event, patchslim, run
from benchmarks.reliability.mutations import EXPORTED
from benchmarks.reliability.outcomes import one_sentence, sentence, trouble
from benchmarks.reliability.subjects import (
    COMPARE,
    FORMATS,
    IT,
    METHODS,
    RECOVER,
    SWEEP,
    Subject,
    here,
    slim_words,
    subjects,
)

LIMIT, TIDY = 60.0, 20.0  # seconds; the second for a command that was told to end
ENDED = (130, 143)  # exit codes of commands that were told to end
WAYS = {
    "killed": 0.3,
    "killed twice": 0.15,
    "terminated": 0.2,
    "interrupted": 0.1,
    "full disk": 0.14,
    "two at once": 0.1,
    "at the start": 0.01,  # a Python of its own, which takes seconds
}
GROUPS = {"killed twice": "killed", "interrupted": "terminated", "at the start": "terminated"}
IMPORTS = 4.0  # seconds, about what a new Python needs before a command begins
FIRST = 0.05  # seconds in which a command has not begun
EARLY = 0.5  # seconds in which a new Python can't say anything yet


@dataclass(frozen=True)
class Job:
    """A command to be ended, what has to be there before it, and how often it is drawn."""

    name: str
    words: tuple[str, ...]
    weight: float
    start: str = ""  # a subject
    again: tuple[str, ...] = ("--resume",)


def jobs() -> dict[str, Job]:
    """All of them, by name."""
    short = ("--epochs", "3", "--block-epochs", "1")
    found = [Job(f"slim by {method}", slim_words(method), 0.5 / len(METHODS)) for method in METHODS]
    found += [Job("slim sweep", SWEEP, 0.12), Job("compare", COMPARE, 0.12)]
    for method in ("drop", "merge"):
        start = f"run {method}"
        found.append(Job(f"finetune of {method}", (*RECOVER, *short), 0.08, start))
        found.append(Job(f"finetune of {method}, copied", (*RECOVER, *short, "--out", "copy"), 0.04, start))
    labels = (*RECOVER, "--epochs", "1", "--block-epochs", "0", "--supervised-epochs", "2")
    found.append(Job("finetune with labels", labels, 0.04, "run merge"))
    if here(["transformers"]):
        words = slim_words("merge", (IT,))[:-1]
        found.append(Job("slim of a Hugging Face model", (*words, "new"), 0.04, "folder vit"))
    for format, weight in (("torch-export", 0.015), ("onnx", 0.005), ("openvino", 0.005)):
        if not here(FORMATS[format]):
            continue
        found.append(Job(f"export to {format}", ("export", IT, "--format", format), weight, "run merge", ()))
    return {job.name: job for job in found}


def chance(seed: int, number: int) -> Random:
    """What decides everything in a case, but for what time does."""
    return Random(f"kills {seed} {number}")


def drawn(rng: Random, among: Sequence[str]) -> tuple[Job, str]:
    """What is ended, and how."""
    every = [job for job in jobs().values() if not among or job.name in among]
    (job,), (way,) = rng.choices(every, [job.weight for job in every]), rng.choices(list(WAYS), list(WAYS.values()))
    return job, way


def needed(seed: int, among: Sequence[str], numbers: Iterable[int]) -> list[Subject]:
    """What has to be made for these cases."""
    starts = {drawn(chance(seed, number), among)[0].start for number in numbers} - {""}
    return [subjects()[name] for name in sorted(starts)]


def whole() -> dict[str, str]:
    """Digests of all that counts in this folder: plans, weights, exported files, results of comparisons."""
    files = [path for path in Path().glob("*/*") if path.suffix in EXPORTED]  # drafts lie deeper
    found = weights(".") | {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}
    for path in Path().rglob("comparison.json"):
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        known = [[row[name] for name in ("method", "target_macs", "macs", "detail", "untuned")] for row in rows]
        found[str(path)] = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]
    return found


def names(place: Path) -> set[str]:
    """Everything that lies in a folder."""
    return {str(path.relative_to(place)) for path in place.rglob("*")}


def command(*words: str) -> Any:
    """A command, and what is there when it is done."""
    patchslim(*words)
    return whole()


def case(seed: int, among: Sequence[str], number: int, work: Path, place: Path) -> dict[str, Any]:
    """One case, in an empty folder: what was ended, and what it came to."""
    rng = chance(seed, number)
    job, way = drawn(rng, among)
    usual, there = undisturbed(job, work)
    if job.start:
        shutil.copytree(subjects()[job.start].place(work), place, dirs_exist_ok=True)
    before, moments = names(place), [rng.uniform(FIRST, usual.seconds) for _ in range(2)]
    begun = time.monotonic()
    stops, bad = disturbed(job, way, moments, usual, place)
    last = stops[-1]
    if bad is None and rng.random() < 0.5:
        bad, last = intact(job, before, place, last)
    if bad is None:
        again = run(partial(command, *job.words, *job.again), place, LIMIT)
        last, bad = again, after(again, usual, there, place)
    return {
        "subject": job.name,
        "way": way,
        "how": ", ".join(f"{moment:.3f} s" for moment in moments[: 2 if way == "killed twice" else 1]),
        "usual": round(usual.seconds, 3),
        "group": f"{job.words[0]}: {GROUPS.get(way, way)}",
        "outcome": bad or "resumed",
        "codes": [own.code for own in stops],
        "said": sentence(last)[:400],
        "code": last.code,
        "seconds": round(time.monotonic() - begun, 3),
        "extra": sorted(names(place) - set(there))[:5],
    }


def disturbed(job: Job, way: str, moments: list[float], usual: Ended, place: Path) -> tuple[list[Ended], str | None]:
    """Run a command and end it; how it ended, and what is wrong with that."""
    first, again = partial(command, *job.words), partial(command, *job.words, *job.again)
    if way == "two at once":
        pair = [Child(first, place), Child(first, place)]
        ends = [child.end(LIMIT) for child in pair]
        bad = next((bad for bad in map(trouble, ends) if bad), None)
        return ends, bad or ("lost" if all(own.code for own in ends) else None)
    if way.startswith("killed"):
        actions = [first, again] if way == "killed twice" else [first]
        ends = [_stopped(action, place, moment, _kill) for action, moment in zip(actions, moments, strict=False)]
        # Killed is as it should be; what was done before that must not be more than a sentence.
        bad = next((bad for own in ends if own.code != -signal.SIGKILL and (bad := trouble(own))), None)
        return ends, bad
    if way == "full disk":
        end = _stopped(first, place, moments[0], Child.fill_disk, LIMIT)  # nobody told it to end
        return [end], trouble(end)
    sign = signal.SIGTERM if way == "terminated" else signal.SIGINT
    if way == "at the start":
        return started(job, moments, usual, place)
    end = _stopped(first, place, moments[0], lambda child: child.send(sign))
    if end.code == -sign:
        return [end], None if moments[0] < FIRST else "no word"
    return [end], None if end.code in ENDED and "Traceback" not in end.err and one_sentence(end) else trouble(end)


def started(job: Job, moments: list[float], usual: Ended, place: Path) -> tuple[list[Ended], str | None]:
    """Ctrl-C, or SIGTERM, to a command in a Python of its own, from its first moment on."""
    sign = signal.SIGINT if moments[1] < usual.seconds / 2 else signal.SIGTERM
    moment = moments[0] / usual.seconds * IMPORTS
    words = [sys.executable, "-m", "patchslim", *job.words]
    child = subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    begun = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(moment)
    child.send_signal(sign)
    try:
        (out, err), hung = child.communicate(timeout=LIMIT), False
    except subprocess.TimeoutExpired:
        child.kill()
        (out, err), hung = child.communicate(), True
    end = Ended(child.returncode, out, err, time.monotonic() - begun, 0, hung)
    if end.code == -sign:  # before the command, or after it: Python itself takes a while to begin and to end
        return [end], None if moment < EARLY or out else "no word"
    return [end], None if end.code in ENDED and "Traceback" not in err else trouble(end)


def _stopped(
    action: Callable[[], Any], place: Path, moment: float, stop: Callable[[Child], None], limit: float = TIDY
) -> Ended:
    event: Event = (moment, stop)
    return Child(action, place).end(moment + limit, [event])


def _kill(child: Child) -> None:
    child.send(signal.SIGKILL)


def intact(job: Job, before: set[str], place: Path, last: Ended) -> tuple[str | None, Ended]:
    """Whether a run that was there before can be loaded at any time, and whole runs of a sweep as well."""
    runs = [path.parent.name for path in place.glob(f"{IT}/macs-*/plan.json")] if job.words[0] == "slim" else []
    folders = [f"{IT}/{name}" for name in runs] or ([IT] if f"{IT}/plan.json" in before else [])
    for folder in folders:
        found = run(partial(_loads, folder), place, LIMIT)
        if found.code:
            return "lost", found
    return None, last


def _loads(folder: str) -> None:
    import patchslim as ps

    logits(ps.load(folder))


def after(again: Ended, usual: Ended, there: list[str], place: Path) -> str | None:
    """What is wrong when a command was gone on with."""
    bad = trouble(again, usual)
    if bad is not None:
        return bad
    found = names(place)
    if again.code or set(there) - found:
        return "lost"
    if again.answer != usual.answer:
        return "other"
    return "left over" if found - set(there) else None


def undisturbed(job: Job, work: Path) -> tuple[Ended, list[str]]:
    """How a command ends when it is left alone, and what lies there then: done once, and kept."""
    known = work / "undisturbed" / f"{job.name.replace(' ', '-')}.json"
    if not known.exists():
        known.parent.mkdir(exist_ok=True)
        place = known.parent / f"{known.stem}-{time.monotonic_ns()}"
        if job.start:
            shutil.copytree(subjects()[job.start].place(work), place)
        place.mkdir(exist_ok=True)
        found = run(partial(command, *job.words), place, LIMIT)
        if found.code:
            raise RuntimeError(f"{job.name} fails undisturbed: {found.err}")
        draft = place.with_suffix(".draft")
        draft.write_text(json.dumps([asdict(found), sorted(names(place))]), encoding="utf-8")
        shutil.rmtree(place)
        draft.replace(known)
    ended, there = json.loads(known.read_text(encoding="utf-8"))
    return Ended(**ended), there
