"""The table as text and as a figure."""

from pathlib import Path
from typing import Any

from PIL import Image

from patchslim.report import draw_comparison, markdown
from patchslim.report.comparison import lines_of

INTERVAL = {"difference": -1.5, "low": -2.25, "high": -0.5, "only_first": 1, "only_second": 4}
LEAD = {"difference": 0.0, "low": -0.5, "high": 0.5, "only_first": 0, "only_second": 0}


def score(top1: float, **first: Any) -> dict[str, Any]:
    return {"top1": top1, "against_base": INTERVAL, "against_first": first or INTERVAL}


def table(recovered: bool) -> dict[str, Any]:
    speed = {"throughput": 120.0, "speedup": 1.5}
    rows: list[dict[str, Any]] = [
        {"method": "one", "target_macs": 0.6, "macs": 6e8, "macs_ratio": 0.6, "reason": None, "untuned": score(70.0)},
        {"method": "two", "target_macs": 0.6, "macs": 5.9e8, "macs_ratio": 0.59, "reason": None},
        {"method": "three", "target_macs": 0.6, "reason": "it can't"},
    ]
    rows[1]["untuned"] = score(71.5, **LEAD)
    rows[0] |= speed
    rows[1] |= speed
    if recovered:
        rows[0]["recovered"] = score(71.0, **LEAD)
    return {
        "model": "small",
        "device": "cpu",
        "settings": {"speed": {"batch_size": 8, "dtype": "float32"}, "recover": {"epochs": 3} if recovered else None},
        "images": {"count": 256},
        "train": {"count": 6000},
        "base": {"method": "base", "macs": 1e9, "macs_ratio": 1.0, "untuned": {"top1": 72.0, "images": 2000}} | speed,
        "rows": rows,
    }


def test_lines() -> None:
    names, rows, notes = lines_of(table(recovered=False))
    assert rows[0][:5] == ["base", "1.000", "1", "72.00", "–"]
    assert rows[1] == [
        *("one", "0.600", "0.6", "70.00"),
        *("-1.50 (-2.25 to -0.50)", "-1.50 (-2.25 to -0.50)", "120.0", "1.50×"),
    ]
    assert rows[2][5] == "first"
    assert rows[3] == ["three", "0.6", *["–"] * 6]
    assert notes == ["three at 0.6: it can't."]
    assert all(len(row) == len(names) for row in rows)


def test_markdown_has_a_line_for_every_row() -> None:
    page = markdown(table(recovered=True))
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 4
    assert len({line.count("|") for line in lines}) == 1
    assert "3 epochs on 6,000 images" in page
    assert "- three at 0.6: it can't." in page
    assert "| one | 0.600 | 0.6 | 70.00 |" in page


def test_a_figure_is_drawn(tmp_path: Path) -> None:
    for recovered in (False, True):
        draw_comparison(table(recovered), tmp_path / "a.png")
        picture = Image.open(tmp_path / "a.png")
        assert picture.size == (1200, 750)
        assert len(set(picture.convert("RGB").get_flattened_data())) > 50
