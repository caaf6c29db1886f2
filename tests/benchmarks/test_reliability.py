"""The fuzzer: a sample of each part, in which nothing may fail; and that it sees what it looks for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from benchmarks.reliability import damage, edits
from benchmarks.reliability.children import Child, run
from benchmarks.reliability.command import ONE_THREAD
from benchmarks.reliability.mutations import like
from benchmarks.reliability.outcomes import of_images, one_sentence, trouble
from benchmarks.reliability.pictures import save_folder, save_shards
from benchmarks.rows import read_rows
from patchslim.errors import RunError

ROOT = Path(__file__).parents[2]
# Few things, as each has to be made, and one of every kind.
THINGS = (
    *("run drop", "run merge", "run of vit", "search by merge", "recovery of drop", "sweep", "comparison unfinished"),
    *("weights.safetensors", "folder vit", "images", "shards"),
    *("slim by drop", "slim by predict", "slim sweep", "finetune of drop", "compare"),
)
SAMPLE = (
    "--mutations",
    "40",
    "--kills",
    "5",
    "--commands",
    "30",
    "--seed",
    "7",
    "--jobs",
    "2",
    "--of",
    ",".join(THINGS),
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs fork, pidfd and prctl")


def test_a_sample_has_no_failures(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks", "reliability", *SAMPLE, "--out", "rows", "--failures", "failures"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | ONE_THREAD | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    failed = [path.read_text(encoding="utf-8") for path in tmp_path.glob("failures/*.jsonl")]
    assert not failed, "".join(failed)
    rows = list(read_rows(tmp_path / "rows"))
    cases: dict[str, float] = {}
    for row in rows:
        assert row.point is not None
        assert row.values is not None
        cases[row.point["part"]] = cases.get(row.point["part"], 0) + row.values["cases"]
    assert cases == {"mutations": 40, "kills": 5, "commands": 30}


def refuses() -> None:
    raise RunError("It is damaged.")


def prints_much() -> None:
    print("patchslim: It is damaged: " + "x" * 400, file=sys.stderr)
    sys.exit(2)


def fails() -> None:
    raise ValueError("what nobody caught")


def waits() -> None:
    time.sleep(60)


def takes_memory() -> None:
    bytearray(2**32)


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (lambda: {"answer": 1}, None),
        (refuses, None),
        (prints_much, "sentence"),
        (fails, "traceback"),
        (waits, "hang"),
        (takes_memory, "memory"),
        (dies, "crash"),
        (lambda: sys.exit(3), "code"),
    ],
)
def test_children_end_as_they_do(action: Callable[[], Any], outcome: str | None, tmp_path: Path) -> None:
    ended = run(action, tmp_path, 0.5 if action is waits else 30.0, memory=2**30)
    assert trouble(ended) == outcome, ended
    assert ended.answer == ({"answer": 1} if outcome is None and ended.code == 0 else None)
    assert one_sentence(ended) == (action is refuses)


def test_a_full_disk_and_signals_reach_a_child(tmp_path: Path) -> None:
    def writes() -> None:
        time.sleep(0.3)
        Path("file").write_text("x")

    full = Child(writes, tmp_path).end(30.0, [(0.05, Child.fill_disk)])
    assert "File too large" in full.err
    told = Child(waits, tmp_path).end(30.0, [(0.05, lambda child: child.send(signal.SIGTERM))])
    assert told.code == -signal.SIGTERM


def make_file(path: Path) -> Path:
    """A file of the kind that its name says."""
    if path.suffix == ".safetensors":
        save_file({name: np.full((4, 3), value, np.float32) for name, value in (("a", 1), ("b", 2))}, path)
    elif path.suffix == ".png":
        Image.new("RGB", (20, 20), (9, 99, 200)).save(path)
    else:
        line = '{"kind": "merge", "counts": [16, 9, 4], "more": {"x": 0.5, "none": null}}\n'
        path.write_text(line * (3 if path.suffix == ".jsonl" else 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["plan.json", "cache.jsonl", "model.safetensors", "image.png"])
def test_damage_depends_on_the_seed_alone(name: str, tmp_path: Path) -> None:
    own = edits.FORMATS.get(Path(name).suffix, (edits.bomb,))
    for way in {*damage.BYTES, *own, damage.planted, damage.truncate}:
        for seed in range(5):
            first, second = (make_file(tmp_path / folder) for folder in (name, f"2{name}"))
            said = [way(Random(seed), path, []) for path in (first, second)]
            assert said[0] == said[1]
            if way is not damage.planted:  # it names its folder
                assert first.read_bytes() == second.read_bytes(), (way, seed)


def test_images_that_are_lost_or_take_anothers_label_are_seen() -> None:
    before = {"images": [[0, "a"], [1, "b"], [2, "c"]], "skipped": 0}
    assert of_images(before, before, False) == "same"
    assert of_images(before, {"images": [[0, "a"], [2, "c"]], "skipped": 1}, False) == "told"
    assert of_images(before, {"images": [[0, "a"], [2, "c"]], "skipped": 0}, False) == "other"
    assert of_images(before, {"images": [[0, "a"], [2, "b"], [2, "c"]], "skipped": 0}, False) == "other"
    assert of_images(before, {"images": [[0, "a"], [1, "x"], [2, "c"]], "skipped": 0}, False) == "unknowable"


def test_users_numbers_are_told_from_damage(tmp_path: Path) -> None:
    before = make_file(tmp_path / "before.safetensors")
    for tensors, alike in (({"a": 5.0, "b": 2.0}, True), ({"a": 5.0}, False), ({"a": np.nan, "b": 2.0}, False)):
        after = tmp_path / "after.safetensors"
        save_file({name: np.full((4, 3), value, np.float32) for name, value in tensors.items()}, after)
        assert like(before, after) == alike


def test_pictures_are_of_every_kind(tmp_path: Path) -> None:
    save_folder(str(tmp_path / "folder"))
    save_shards(str(tmp_path / "shards"))
    assert len({path.suffix for path in tmp_path.rglob("*.*")}) >= 9
    assert len(list(tmp_path.glob("shards/*.tar"))) == 2
