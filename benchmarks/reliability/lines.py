"""The third part: command lines that nobody should type, made from those that somebody would."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import typer

from benchmarks.reliability.children import Child, Ended, patchslim
from benchmarks.reliability.outcomes import one_sentence, sentence, tree, trouble
from benchmarks.reliability.subjects import DIGITS, IT, MODEL, Subject, subjects

LIMIT, TIDY = 25.0, 20.0  # seconds of work, and to end when told to
MEMORY = 3 * 2**30
BUSY = 0.1  # of its time a command that works has a core, even on a machine with much else to do
ENDED = (130, 143)
# What lies in the folder of every case, by name.
PLACED = {
    "run": "run drop",
    "merged": "run merge",
    "sweep": "sweep",
    "unfinished": "search by merge",
    "images": "images",
    "host": "folder vit",  # if transformers is here
}
USUAL: dict[str, tuple[str, ...]] = {
    "demo": ("--out", "demo"),
    "methods": ("merge",),
    "inspect": ("test_vit",),
    "slim": (*MODEL, *DIGITS, "--target-macs", "0.7", "--method", "drop", "--out", "new"),
    "finetune": ("run", *DIGITS[:4], "--images", "8", "--batch-size", "8", "--epochs", "1", "--block-epochs", "0"),
    "eval": ("run", "--data", "digits", "--limit", "4", "--device", "cpu"),
    "bench": ("run", "--seconds", "0.01", "--batch-size", "1", "--device", "cpu"),
    "export": ("run", "--format", "torch-export"),
    "compare": (
        *("test_vit", "--img-size", "64", *DIGITS, "--val", "digits:test", "--limit", "8", "--methods", "drop,tome"),
        *("--target-macs", "0.7", "--seconds", "0.01", "--bench-batch-size", "1", "--mode", "eager", "--out", "new"),
    ),
    "report": ("run", "merged"),
    "view": ("merged", "--image", "images/class0/0000.png"),
}
RARE = {"demo": 0.1, "export": 0.3}  # they take longest
# Things in the folder of a case, right for some options and wrong for others.
THINGS = (
    *("run", "merged", "sweep", "unfinished", "images", "host", "shard.tar", "weights.safetensors", "notes.txt"),
    *("empty", "loop", "fifo", "zero", "null", "nowhere", "nowhere/at/all", "ünï cödé", "run/plan.json"),
    *("run/model.safetensors", "images/class0", "images/class0/0000.png", ".", "..", "/", "host/config.json"),
)
WORDS = (
    *("", " ", "-", "--", "x", "nan", "inf", "-inf", "-1", "0", "1", "2", "0.5", "1.0", "1e309", "1e-300", "-0.0"),
    *("999999999999999999999", "2147483648", "0x10", "1,,2", ",", "0.8,0.7", "0.7,nan", "None", "True", "[]", "½"),
    *(
        "٣",
        "🙂",
        "x" * 5000,
        "a\nb",
        "\x1b[31m",
        "\udcff",
        "%s",
        "{",
        "{0..9}",
        "*",
        "~",
        "$HOME",
        "'",
        "../..",
        "--out",
    ),
    *("digits", "digits:test", "digits:none", "hf:nobody/nothing", "test_vit", "resnet18", "deit_tiny_patch16_224"),
    *("cpu", "cuda:9", "meta", "float16", "bfloat16", "int3", "merge", "all", "onnx", "mindir", "eager", "avg", "map"),
    *("blocks=2", "blocks=nan", "blocks", "=", "drop.step=1", "epochs=-1", "threshold=maybe"),
)
ENCODINGS = ("utf-8", "utf-8", "ascii", "cp1252")
FEW = {"--workers": ("0", "1", "-1", "x", ""), "--seconds": ("0", "-1", "nan", "0.01", "x", "inf")}
# What no command but those that say so may change when it is done; others are logs, pages and the like.
KEPT = (".safetensors", ".tar", ".txt", ".png", "plan.json", "config.json")
MORE = ("--help", "--json", "--resume", "--again", "--no-such-option", "-x", "-h", "--data", "stray")


def chance(seed: int, number: int) -> Random:
    """What decides everything in a case."""
    return Random(f"commands {seed} {number}")


@cache
def options() -> dict[str, list[tuple[str, bool]]]:
    """Every command's options, from the command line itself, and whether they take a value."""
    group: Any = typer.main.get_command(_app())
    context = typer.Context(group)
    found = {}
    for name in group.list_commands(context):
        every = group.resolve_command(context, [name])[1].params
        named = [(own.opts[0], not own.is_flag) for own in every if own.opts[0].startswith("--")]
        found[name] = named
    return found


def _app() -> Any:
    name = "patchslim.cli.app" if find_spec("patchslim.cli.app") else "patchslim.cli.main"
    return import_module(name).app


def drawn(rng: Random) -> list[str]:
    """A command line: a usual one, with up to four things changed."""
    known = sorted(options())
    (name,) = rng.choices(known, [RARE.get(own, 1.0) for own in known])
    words = [name, *USUAL.get(name, ("run",))]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        words = changed(rng, words)
    return words


def changed(rng: Random, words: Sequence[str]) -> list[str]:
    """One thing changed."""
    words, own = list(words), options().get(words[0] if words else "", [])
    how = rng.choice(("option", "option", "option", "value", "value", "word", "remove", "more", "twice", "swap"))
    if how == "option" and own:
        name, takes = rng.choice(own)
        if name in words and takes:
            place = words.index(name) + 1
            words[place : place + 1] = [value(rng, name)]
        else:
            words += [name, value(rng, name)] if takes else [name]
    elif how in ("value", "word") and len(words) > 1:
        place = rng.randrange(1, len(words))
        if not words[place].startswith("--"):
            words[place] = value(rng, words[place - 1])
    elif how == "remove" and words:
        del words[rng.randrange(len(words))]
    elif how == "twice" and words:
        place = rng.randrange(len(words))
        words += words[place : place + 2]
    elif how == "swap" and len(words) > 2:
        first, second = rng.sample(range(len(words)), 2)
        words[first], words[second] = words[second], words[first]
    else:
        words.insert(rng.randrange(len(words) + 1), rng.choice(MORE))
    return words


def value(rng: Random, option: str) -> str:
    """What is given to an option."""
    return rng.choice(FEW.get(option, (rng.choice(WORDS), rng.choice(THINGS))))


def needed(numbers: Iterable[int]) -> list[Subject]:
    """What has to be made: the same things lie beside every case."""
    known = subjects()
    return [*(known[name] for name in PLACED.values() if name in known), known["shards"], known["weights.safetensors"]]


def spoken(encoding: str, words: Sequence[str]) -> None:
    """A command whose outputs have an encoding that may lack what it wants to say."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="strict")
    patchslim(*words)


def furnish(work: Path, place: Path) -> None:
    """Put the things that words may name into the folder of a case."""
    for name, subject in PLACED.items():
        if subject in subjects():
            shutil.copytree(subjects()[subject].place(work) / IT, place / name)
    shutil.copyfile(subjects()["shards"].place(work) / IT / "shard-0.tar", place / "shard.tar")
    shutil.copyfile(
        subjects()["weights.safetensors"].place(work) / IT / "weights.safetensors", place / "weights.safetensors"
    )
    (place / "notes.txt").write_text("no image, no model\n", encoding="utf-8")
    (place / "empty").mkdir()
    os.mkfifo(place / "fifo")
    for name, target in (("loop", "loop"), ("zero", "/dev/zero"), ("null", "/dev/null")):
        (place / name).symlink_to(target)
    shutil.copytree(place / "images" / "class0", place / "ünï cödé")


def case(seed: int, number: int, work: Path, place: Path) -> dict[str, Any]:
    """One case, in an empty folder: what was asked, and what it came to."""
    rng = chance(seed, number)
    words, encoding = drawn(rng), rng.choice(ENCODINGS)
    furnish(work, place)
    before = tree(place)
    child = Child(partial(spoken, encoding, words), place, MEMORY)
    late: list[float] = []
    ended = child.end(LIMIT + TIDY, [(LIMIT, lambda own: _stop(own, late))])
    changes = sorted(name for name, what in tree(place).items() if before.get(name) != what)
    gone = sorted(set(before) - set(tree(place)))
    return {
        "subject": words[0][:20] if words else "",
        "how": shlex.join(words)[:600],
        "encoding": encoding,
        "group": f"`{words[0]}`" if words and words[0] in options() else "no such command",
        "outcome": judge(words, ended, late, before, [*changes, *gone]),
        "said": sentence(ended)[:400],
        "code": ended.code,
        "seconds": round(ended.seconds, 3),
        "mib": ended.memory // 2**20,
        "extra": [*changes, *gone][:5],
    }


def _stop(child: Child, late: list[float]) -> None:
    """It is still at work: note how much of a core it had, and tell it to end."""
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    late.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") / LIMIT)
    child.send(signal.SIGTERM)


def judge(words: Sequence[str], ended: Ended, late: list[float], before: dict[str, str], touched: Sequence[str]) -> str:
    """What a case came to."""
    if late:
        if ended.hung or late[0] < BUSY:
            return "hang"
        if ended.code == -signal.SIGTERM:
            return "no word"
        tidy = ended.code in ENDED and "Traceback" not in ended.err and one_sentence(ended)
        return "working" if tidy or ended.code == 0 else trouble(ended) or "working"
    bad = trouble(ended)
    if bad is not None:
        return bad
    there = [name for name in touched if name in before]
    if ended.code == 2:
        return "lost" if there else "left over" if touched else "refused"
    kept = [name for name in there if name.endswith(KEPT)]
    return "lost" if kept and words[0] not in ("finetune", "seal") else "done"
