"""Files appear whole or not at all, and are read with errors a person understands."""

import os
from pathlib import Path

import pytest

from patchslim.errors import PlanError, RunError
from patchslim.files import (
    Digest,
    check_same,
    drafts,
    is_as,
    read_json,
    read_sealed,
    remove_leftovers,
    remove_unfinished,
    replacing,
    write_json,
    write_sealed,
    write_text,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    left = tmp_path / ".a.txt.0123abcd.patchslim"
    for remove, place in ((remove_leftovers, tmp_path / "a.txt"), (remove_unfinished, tmp_path)):
        left.write_text("half")
        with replacing(tmp_path / "a.txt") as temporary:
            temporary.write_text("new")
            remove(place)
            assert set(tmp_path.iterdir()) - {tmp_path / "a.txt"} == {temporary}
        assert (tmp_path / "a.txt").read_text() == "new"
        assert not left.exists()


def test_a_folder_of_drafts_goes_with_what_is_in_it(tmp_path: Path) -> None:
    left = tmp_path / ".a.onnx.0123abcd.patchslim"
    left.touch()
    left.with_suffix(".drafts").mkdir()
    (left.with_suffix(".drafts") / "half").touch()
    with drafts(tmp_path / "a.onnx") as folder:
        (folder / "b").write_text("x")
        remove_unfinished(tmp_path)
        assert {path.suffix for path in tmp_path.iterdir()} == {".drafts", ".patchslim"}
        assert (folder / "b").exists()
        assert not left.exists()
    assert not list(tmp_path.iterdir())


def test_json_ends_in_a_newline_and_is_readable_by_others(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "x": 1\n}\n'
    assert read_json(tmp_path / "a.json", PlanError, "plan") == {"x": 1}


def test_a_file_has_the_rights_that_a_new_one_has(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "x")
        (tmp_path / "b.txt").write_text("x")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "There is no plan at "),
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff\xfe", "can't be read"),
        (b"[1]", "is not a JSON object"),
    ],
)
def test_what_is_no_json_object_is_told(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(PlanError, match=words) as told:
        read_json(tmp_path / "plan.json", PlanError, "plan")
    assert str(tmp_path / "plan.json") in str(told.value)
    assert "\n" not in str(told.value)


def test_the_first_difference_is_named() -> None:
    before = {"model": "a", "images": {"count": 2, "seed": 0}}
    check_same(before, {"images": {"count": 2, "seed": 0}}, "It", "stop")
    for now, words in (
        ({"model": "b"}, r"It was started with other model \(a, now b\); stop\."),
        ({"images": {"count": 2, "seed": 1}}, r"other images \(seed 0, now 1\)"),
        ({"images": {"count": 2}}, r"other images \(seed 0, now None\)"),
        ({"device": "gpu"}, r"other device \(None, now gpu\)"),
    ):
        with pytest.raises(RunError, match=words):
            check_same(before, now, "It", "stop")


def test_a_key_without_a_value_is_a_difference() -> None:
    with pytest.raises(RunError, match="with blocks in one of them only"):
        check_same({"settings": {"blocks": None}}, {"settings": {}}, "It", "stop")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_only_plain_files_of_a_sane_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no space
    for name in ("pipe", "endless", "loop", "folder", "large"):
        with pytest.raises(PlanError, match=r"can't be read|larger than 16 MiB"):
            read_json(tmp_path / name, PlanError, "plan")
        assert not is_as(tmp_path / name, Digest(0, ""))


def test_a_sealed_object_tells_of_any_change(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_sealed(path, {"b": {2: 0.1, 10: float("inf")}, "a": (1, None)})
    assert read_sealed(path, RunError, "state") == {"b": {"2": 0.1, "10": float("inf")}, "a": [1, None]}
    for old, new in (("0.1", "0.2"), ("null", "1"), ('"a"', '"c"'), ('"sha256"', '"sha"')):
        whole = path.read_text()
        path.write_text(whole.replace(old, new))
        with pytest.raises(RunError, match="is not as it was written"):
            read_sealed(path, RunError, "state")
        path.write_text(whole)


def test_what_a_killed_write_left_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "x")
    for name in (".a.json.0a1b2c3d.patchslim", ".a.json.00000000.patchslim", ".b.json.00000000.patchslim"):
        (tmp_path / name).write_text("half")
    remove_leftovers(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".b.json.00000000.patchslim", "a.json"]


def test_bounds_on_memory_may_differ() -> None:
    before = {"settings": {"seed": 0, "cache_gib": 4.0}, "search": {"memory_gib": 2.0}, "grid": [4, 4]}
    check_same(before, {"settings": {"seed": 0, "cache_gib": 0.5}, "search": {"memory_gib": 0}}, "It", "stop")
    check_same(before, {"grid": (4, 4)}, "It", "stop")  # as JSON has it
    with pytest.raises(RunError, match=r"other settings \(seed 0, now 1\)"):
        check_same(before, {"settings": {"seed": 1, "cache_gib": 4.0}}, "It", "stop")
