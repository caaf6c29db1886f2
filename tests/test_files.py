"""Files appear whole or not at all, and are read with errors a person understands."""

import os
from pathlib import Path

import pytest

from patchslim.errors import PlanError, RunError
from patchslim.files import check_same, read_json, replacing, write_json, write_text


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
