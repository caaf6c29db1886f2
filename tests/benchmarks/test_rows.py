"""The schema of results: what a row answers, what is kept and replaced, what tables show."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from benchmarks.inputs import PROMISED, read_methods, scored, wilson
from benchmarks.rows import Row, about, file_of, keep, read_rows
from benchmarks.table import COLUMNS, markdown, pages, readme_table
from patchslim.errors import DataError

HEAD: dict[str, Any] = {
    "question": "accuracy",
    "model": "m",
    "device": "NVIDIA H200",
    "versions": {"torch": "2"},
    "command": "c",
    "date": "2026-01-01",
}
MERGE: dict[str, Any] = {"method": "merge", "target_macs": 0.55, "macs_ratio": 0.549}


def row(**fields: Any) -> Row:
    return Row(**HEAD | {"method": "host"} | fields)


def test_a_row_replaces_the_one_that_answers_the_same(tmp_path: Path) -> None:
    every = {"settings": {"blocks": None}}
    keep([row(top1=71.0), row(**MERGE, top1=70.0), row(**MERGE, **every, top1=70.5)], tmp_path)
    keep([row(**MERGE, top1=69.0, date="2026-02-02"), row(**MERGE, device="CPU 1", top1=1.0)], tmp_path)
    assert {path.name for path in tmp_path.glob("*.json")} == {"nvidia-h200.json", "cpu-1.json"}
    found = [own for own in read_rows(tmp_path) if own.device == "NVIDIA H200"]
    assert [(own.method, own.settings, own.top1) for own in found] == [
        *(("host", {}, 71.0), ("merge", {}, 69.0), ("merge", {"blocks": None}, 70.5)),
    ]
    assert "lost" not in file_of("NVIDIA H200", tmp_path).read_text()  # what does not apply is not written


def test_other_questions_and_points_are_other_rows(tmp_path: Path) -> None:
    points = [{"point": {"block": block}} for block in (1, 2)]
    keep([row(), row(question="speed"), *(row(**point) for point in points), row(seed=1)], tmp_path)
    assert len(list(read_rows(tmp_path))) == 5


def test_unknown_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        row(top_1=70.0)
    path = tmp_path / "gpu.json"
    for text, words in (
        ('{"rows": [{"top_1": 3}]}', "holds a row that is none"),
        ('{"tables": []}', "holds no rows"),
        ("[", "is not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            list(read_rows(tmp_path))


def test_a_command_names_no_place_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "accuracy",
        "--checkpoint",
        "/home/me/w.safetensors",
        "--data",
        "/data/{0..3}/s-{0..3}.tar",
        "--out",
        "a/b",
    ]
    words += [
        "--weights",
        "deit=/x/y.pth",
        "--model",
        "hf:facebook/deit",
        "--val",
        "data/val/",
        "--methods",
        "merge:blocks=2",
    ]
    monkeypatch.setattr("sys.argv", ["main", *words])
    command = about(torch.device("cpu"))["command"]
    assert command == (
        "python -m benchmarks accuracy --checkpoint w.safetensors --data 's-{0..3}.tar' --out b "
        "--weights deit=y.pth --model hf:facebook/deit --val val/ --methods merge:blocks=2"
    )


def test_methods_with_settings() -> None:
    found = read_methods("merge, merge:blocks=none,ps:tune_epochs=0:carry=true")
    assert [(own.name, own.settings) for own in found] == [
        *(("merge", {}), ("merge", {"blocks": None}), ("ps", {"tune_epochs": 0, "carry": True})),
    ]
    assert [read_methods(str(own))[0] for own in found] == found


def test_intervals_hold_their_middle() -> None:
    low, high = wilson(50, 100)
    assert (round(low, 2), round(high, 2)) == (40.38, 59.62)  # Wilson's own for one half of 100
    base = torch.tensor([True] * 8 + [False] * 2)
    own = torch.tensor([True] * 6 + [False] * 3 + [True])
    score = scored(own, base)
    assert (score["val_images"], score["top1"], score["lost"]) == (10, 70.0, 10.0)
    assert score["lost_low"] < 10 < score["lost_high"]


def test_tables_show_rows_and_why_numbers_are_missing() -> None:
    rows = [row(top1=71.4, top1_low=69.4, top1_high=73.3), row(**MERGE, top1=70.0, top1_low=68.0, top1_high=72.0)]
    rows.append(row(method="hvt", target_macs=0.4, reason="it takes 0.5"))
    lines = pages("accuracy", rows).splitlines()
    assert lines[0] == "m on NVIDIA H200"
    assert lines[4] == "| host | – | – | 71.40 (69.40 to 73.30) | – | – | – |"
    assert lines[5] == "| `merge` | 0.549 | – | 70.00 (68.00 to 72.00) | – | – | – |"
    assert lines[-1] == "- `hvt` at 0.4: it takes 0.5"
    shown = markdown(COLUMNS["speed"], [row(images_per_second=12345.6, settings={"blocks": None}, method="merge")])
    assert "| `merge`, `blocks=none` |" in shown
    assert "| 12,346 |" in shown


def test_the_readmes_table_joins_what_was_measured_of_a_method() -> None:
    score = {"top1": 70.0, "top1_low": 68.0, "top1_high": 72.0}
    fast = {"question": "speed", "images_per_second": 2000.0, "speedup": 2.0, "batch_size": 256, "dtype": "bfloat16"}
    rows = [row(**score), row(**MERGE, **score), row(**MERGE | {"question": "search", "search_seconds": 90.0})]
    rows += [
        row(**MERGE | score | {"top1": 71.0}, recovery_epochs=30),
        row(**MERGE | fast | {"target_macs": PROMISED}, image_size=224),
    ]
    rows += [row(**MERGE | score | {"top1": 70.5}, recovery_epochs=2)]
    rows += [row(**MERGE | score | {"top1": 60.0, "device": "another"})]  # accuracies of two devices don't mix
    rows += [row(**MERGE | score | {"top1": 73.0}, image_size=448), row(**MERGE | score | {"top1": 62.0}, images=9)]
    rows += [row(**MERGE | score, images=99), row(**MERGE | score | {"top1": 63.0}, images=10)]  # the most images count
    names, _, host, merge = readme_table(rows, "m", 0.55).splitlines()
    assert names == "| method | top-1, % | recovered, % | GPU, batch 256 | search, minutes |"  # nothing of a CPU
    assert host == "| host | 70.00 (68.00 to 72.00) | – | – | – |"
    known = "70.00 (68.00 to 72.00) | 71.00 (68.00 to 72.00) | 2,000 (2.00×)"
    assert merge == f"| `merge` | {known} | 1.5 |"
