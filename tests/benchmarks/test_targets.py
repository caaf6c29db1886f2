"""What is to be reached, and the picture of top-1 against throughput: which rows they take, what they say of them."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.figures.throughput import Point, caption, draw, joined
from benchmarks.inputs import LARGE, MODEL
from benchmarks.rows import Row
from benchmarks.targets import targets, wanted
from patchslim.errors import DataError

HEAD: dict[str, Any] = {"model": MODEL, "device": "NVIDIA H200", "versions": {}, "command": "c", "date": "2026-01-01"}
FAST: dict[str, Any] = {"question": "speed", "image_size": 224, "dtype": "bfloat16"}
RIGHT: dict[str, Any] = {"question": "accuracy", "image_size": 224, "images": 1000}


def row(method: str = "merge", **fields: Any) -> Row:
    return Row(**HEAD | {"method": method} | fields)


def line(table: str, *words: str) -> str:
    (found,) = (line for line in table.splitlines() if all(word in line for word in words))
    return found.rsplit("≥" if "≥" in found else "≤", 1)[1].strip()


def test_targets_are_hit_or_missed() -> None:
    at = {"target_macs": 0.57}
    rows = [
        row(**FAST | at, batch_size=1, speedup=1.3),
        row(**FAST | at, batch_size=1, speedup=1.1, date="2026-01-02"),  # the later one counts
        row(**FAST | at, batch_size=1, speedup=9.0, settings={"blocks": 2}),  # it is not the default
        row("cover", **FAST | at, batch_size=1, speedup=1.25),
        row(**FAST | at, batch_size=256, speedup=2.0, speedup_same_embedding=1.6, macs_ratio=0.5625),
        row(**FAST | at, batch_size=128, speedup=1.8).model_copy(update={"model": LARGE}),
        row(**RIGHT, target_macs=0.55, lost=0.5, error=0.03),
        row(**RIGHT, target_macs=0.4, lost=1.4, recovery_epochs=30),
        row(**RIGHT | {"image_size": 448, "images": 250}, target_macs=0.4, error=0.02),
        row(**FAST | at | {"dtype": "float32"}, batch_size=1, threads=2, speedup=1.4),
        row(question="training-speed", point={"part": "whole"}, values={"share": 0.9}),
    ]
    table = targets(rows)
    assert line(table, "H200, DeiT-Ti, batch 1 ", "`merge`") == "1.20 | 1.10 | missed |"
    assert line(table, "H200, DeiT-Ti, batch 1 ", "`cover`") == "1.25 | 1.25 | hit |"
    assert line(table, "H200, DeiT-Ti, batch 1 ", "`drop`") == "1.40 | – | – |"
    assert line(table, "H200, DeiT-Ti, batch 256", "`merge`") == "90% | 90% | hit |"
    assert line(table, "ViT-L/16, batch 128", "`merge`") == "1.75 | 1.80 | hit |"
    assert line(table, "−45 %, untuned", "`merge`") == "0.40 | 0.50 | missed |"
    assert line(table, "−60 %, 30 epochs", "`merge`") == "1.50 | 1.40 | hit |"
    assert line(table, "448 px against", "`merge`") == "0.0300 | 0.0200 | hit |"  # another row's number is the bound
    assert line(table, "2 CPU cores, eager, DeiT-Ti, batch 1 ", "`merge`") == "1.40 | 1.40 | hit |"
    assert line(table, "a training step |", "`merge`") == "85% | 90% | hit |"
    assert len(table.splitlines()) == 2 + len(list(wanted()))


def both(method: str, ratio: float | None, speed: float, top1: float) -> list[Row]:
    at: dict[str, Any] = {"target_macs": ratio}
    return [row(method, **FAST | at, batch_size=256, images_per_second=speed), row(method, **RIGHT | at, top1=top1)]


def test_the_picture_joins_speed_and_accuracy(tmp_path: Path) -> None:
    rows = [*both("host", None, 100.0, 71.0), *both("merge", 0.4, 250.0, 68.0), *both("merge", 0.7, 140.0, 70.9)]
    rows += both("tome", 0.7, 90.0, 70.0)[:1]  # nobody knows how accurate it is
    rows.append(row(**RIGHT | {"images": 256}, target_macs=0.4, top1=60.0))  # chosen by fewer images
    rows.append(row(**RIGHT, target_macs=0.4, top1=69.5, recovery_epochs=30))
    found = joined(rows, MODEL, 256)
    assert found == {"host": [Point(100.0, 71.0, None)], "merge": [Point(140.0, 70.9, 0.7), Point(250.0, 68.0, 0.4)]}
    assert joined(rows, MODEL, 1) == {}
    assert caption([found]).startswith("Marks on a line, from the top: 30 % and 60 % fewer MACs")
    draw(rows, MODEL, tmp_path / "t.png")
    with Image.open(tmp_path / "t.png") as picture:
        assert min(picture.size) > 700
    with pytest.raises(DataError, match="No rows say both"):
        draw(rows[:2], MODEL, tmp_path / "u.png")
