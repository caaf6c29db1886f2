"""The manifest: nothing that has changed is taken for the run, and a kill at any moment leaves a whole one."""

import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.files import locked
from patchslim.runs.manifest import add_made, check_files, put_files, read_manifest, stale
from patchslim.runs.store import FILES, PLAN, check_run, put_metrics, seal
from small import make_host, make_images, merging

OLD = {name: f"old {name}".encode() for name in ("a", "b", "plan")}
NEW = {name: f"new {name}, longer".encode() for name in ("c", "b", "plan")}
forks = pytest.mark.skipif(sys.platform == "win32", reason="no fork")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run whose steps own something."""
    model = make_host()
    ps.save(ps.apply(model, *merging(model)), tmp_path / "run")
    return tmp_path / "run"


def killed_at(step: int, folder: Path, contents: dict[str, bytes]) -> bool:
    """Put files in a process that is killed before its n-th renaming; False where it comes to its end before."""
    child = os.fork()
    if not child:
        left, rename = iter(range(step)), os.replace

        def replace(*paths: Any, **more: Any) -> None:
            if next(left, None) is None:
                os._exit(9)
            rename(*paths, **more)

        Path.replace = lambda path, target: replace(path, target)  # type: ignore[assignment, method-assign, return-value]
        put_files(folder, contents, "weights", "plan")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@forks
def test_a_kill_at_any_moment_leaves_the_old_files_or_the_new_ones(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    put_files(tmp_path / "whole", OLD, "weights", "plan")
    seen, step = set(), 0
    while True:
        folder = tmp_path / str(step)
        shutil.copytree(tmp_path / "whole", folder)
        killed = killed_at(step, folder, NEW)
        manifest = check_files(folder, OLD, (*OLD, *NEW))
        now = {name: (folder / name).read_bytes() for name in manifest.files}
        assert now in (OLD, OLD | NEW)
        seen.add(len(now))
        put_files(folder, NEW, "weights", "plan")  # going on is possible, and tidies up
        assert {path.name for path in folder.iterdir()} == {*OLD, *NEW, "manifest.json"}
        if not killed:
            break
        step += 1
    assert seen == {3, 4}
    assert step > 2 * len(NEW)


@forks
def test_a_new_run_that_is_killed_is_no_run_and_can_be_written_again(tmp_path: Path) -> None:
    for step in range(9):
        folder = tmp_path / str(step)
        folder.mkdir()
        killed = killed_at(step, folder, OLD)
        assert killed == (not (folder / "plan").exists())
        put_files(folder, OLD, "weights", "plan")
        check_files(folder, OLD, OLD)
    assert not killed


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_files(tmp_path, OLD, "weights", "plan")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write, left = Path.write_bytes, iter(range(2))

    def few(path: Path, data: bytes) -> int:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", few)
    with pytest.raises(OSError, match="No space"):
        put_files(tmp_path, NEW, "weights", "plan")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def changed(data: bytes, how: random.Random) -> bytes:
    """The same bytes with something done to them."""
    place = how.randrange(len(data))
    kinds: list[Callable[[], bytes]] = [
        lambda: data[:place] + bytes([data[place] ^ 1 << how.randrange(8)]) + data[place + 1 :],
        lambda: data[:place],
        lambda: data + b"\0",
        lambda: data[:place] + bytes(min(64, len(data) - place)) + data[place + 64 :] + b" ",
        lambda: b"",
    ]
    return how.choice(kinds)()


def refusal(run: Path, images: torch.Tensor, before: torch.Tensor) -> str | None:
    """Why a run is not loaded; None where it is, and gives the logits it gave before."""
    try:
        assert torch.equal(ps.load(run)(images), before)
    except ps.PatchslimError as error:
        return str(error)
    return None


@torch.no_grad()
def test_no_changed_file_is_loaded(saved: Path) -> None:
    """Seeded mutations of every file: refused in a sentence, or without effect (spaces in the manifest)."""
    how, images = random.Random(5), make_images()
    before, names = ps.load(saved)(images), sorted(path.name for path in saved.iterdir())
    assert len(names) == 6
    refusals = 0
    for turn in range(90):
        name = names[turn % len(names)]
        whole = (saved / name).read_bytes()
        (saved / name).write_bytes(changed(whole, how))
        told = refusal(saved, images, before)
        refusals += told is not None
        assert told is None or "\n" not in told
        assert name == "manifest.json" or f"{name} is not as it was written" in str(told)
        (saved / name).write_bytes(whole)
    assert refusals > 85
    for name in names:
        (saved / name).rename(saved / "away")
        with pytest.raises(ps.RunError, match=r"is missing|has no manifest|is not finished"):
            ps.load(saved)
        (saved / "away").rename(saved / name)


def test_files_of_another_run_are_refused(saved: Path, tmp_path: Path) -> None:
    model = make_host(seed=3)
    ps.save(ps.apply(model, ps.full_plan(model)), tmp_path / "other")
    for name in ("plan.json", "model.safetensors"):
        kept = (saved / name).read_bytes()
        shutil.copyfile(tmp_path / "other" / name, saved / name)
        with pytest.raises(ps.RunError, match=f"{name} is not as it was written; restore it, or take the run as it is"):
            ps.load(saved)
        (saved / name).write_bytes(kept)
    shutil.copyfile(saved / "steps.safetensors", tmp_path / "other" / "steps.safetensors")
    with pytest.raises(ps.RunError, match=r"steps\.safetensors is not named in its manifest"):
        ps.load(tmp_path / "other")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("name", ["config.json", "plan.json", "manifest.json", "model.safetensors", "metrics.json"])
def test_what_is_no_plain_file_is_refused_unread(saved: Path, name: str) -> None:
    def pipe(path: Path) -> None:
        os.mkfifo(path)  # reading it would wait for ever

    def endless(path: Path) -> None:
        path.symlink_to("/dev/zero")

    def loop(path: Path) -> None:
        path.symlink_to(path.name)

    def folder(path: Path) -> None:
        path.mkdir()

    for make in (pipe, endless, loop, folder):
        (saved / name).unlink() if not (saved / name).is_dir() else (saved / name).rmdir()
        make(saved / name)
        readers: list[Callable[[Path], object]] = [ps.load]
        if name != "manifest.json":  # which sealing writes anew
            readers.append(seal)
        for read in readers:
            with pytest.raises((ps.PatchslimError, OSError)) as told:
                read(saved)
            assert "\n" not in str(told.value)


def test_a_run_without_a_manifest_is_sealed_by_hand(saved: Path) -> None:
    (saved / "manifest.json").unlink()
    with pytest.raises(ps.RunError, match=r"has no manifest\.json.*`patchslim seal"):
        ps.load(saved)
    assert seal(saved) == [name for name in (*FILES, PLAN) if name != "host.safetensors"]
    ps.load(saved)


def test_sealing_takes_an_edit_but_nothing_that_makes_no_model(saved: Path) -> None:
    metrics = saved / "metrics.json"
    metrics.write_text('{"top1": 71.5}')
    seal(saved)
    check_run(saved)
    before = (saved / "manifest.json").read_bytes()
    for name, text in (("metrics.json", '{"top1": "high"}'), ("plan.json", "{}"), ("model.safetensors", "x")):
        kept = (saved / name).read_bytes()
        (saved / name).write_text(text)
        with pytest.raises(ps.PatchslimError, match=name.partition(".")[0]):
            seal(saved)
        (saved / name).write_bytes(kept)
    assert (saved / "manifest.json").read_bytes() == before


def test_what_was_made_from_a_run_may_go_and_grows_stale(saved: Path, tmp_path: Path) -> None:
    (saved / "bench").mkdir()
    paths = [saved / "model.onnx", saved / "bench" / "here.json", tmp_path / "elsewhere.onnx"]
    for path in paths:
        path.write_text("x")
    add_made(saved, paths, PLAN)
    assert sorted(read_manifest(saved).made) == ["bench/here.json", "model.onnx"]
    put_metrics(saved, {"top1": 1.0})
    assert stale(saved, check_run(saved)) == []
    put_files(saved, {"metrics.json": b"{}"}, "other weights", PLAN)
    assert stale(saved, check_run(saved)) == ["bench/here.json", "model.onnx"]
    paths[0].unlink()
    assert stale(saved, check_run(saved)) == ["bench/here.json"]


def test_two_processes_do_not_lose_each_others_notes(saved: Path) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    with locked(saved / PLAN):
        child = os.fork()
        if not child:
            (saved / "other.onnx").write_text("x")
            add_made(saved, [saved / "other.onnx"], PLAN)  # waits
            os._exit(0)
        data = json.loads((saved / "manifest.json").read_text())
        digest = hashlib.sha256(b"y").hexdigest()
        data["made"] = {"mine.onnx": {"size": 1, "sha256": digest, "weights": ""}}
        (saved / "manifest.json").write_text(json.dumps(data))
    os.waitpid(child, 0)
    assert sorted(read_manifest(saved).made) == ["mine.onnx", "other.onnx"]


@pytest.mark.parametrize("name", ["../plan.json", "/etc/passwd", "a/../../b", "a\\b", ""])
def test_a_manifest_names_nothing_outside_its_run(saved: Path, name: str) -> None:
    data = json.loads((saved / "manifest.json").read_text())
    data["files"][name] = data["files"]["plan.json"]
    (saved / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(ps.RunError, match="a file lies in the run folder"):
        ps.load(saved)
