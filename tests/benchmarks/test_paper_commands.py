"""The commands of the paper's tables on a small model: what they write, what they say is missing, what they skip."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import paper_table1
import paper_table2
import paper_table3
import paper_throughput
import patchslim as ps
import published
from paper_harness import command
from paper_tables import PAGE, README, TEXTS, filled, shortened
from patchslim.cli.common import open_model
from patchslim.measure import evaluate
from published import BASELINE, DPS, PS, Model, Row
from speed_rows import SpeedBlock
from watch import Watch

TINY = "digits_vit"
WEIGHTS = Path(ps.__file__).parent / "assets" / "digits_vit.safetensors"
ROWS = (
    Row(TINY, BASELINE, 99.0, 100.0, 0.05, 0.0, 100, 0.0),
    Row(TINY, "HVT", 90.0, 99.0, 0.03, 40.0, 140, 40.0),
    Row(TINY, PS, 98.0, 99.0, 0.03, 40.0, 150, 50.0),
    Row(TINY, DPS, 98.5, 99.0, 0.02, 50.0, 160, 60.0),
)
MODELS = (Model("Digits", 0.05, 99.0, TINY), Model("PS-Digits", 0.03, 98.0, TINY, PS, 0.05))
QUICK = ["--bench-batch-size", "2", "--bench-dtype", "float32", "--seconds", "0.01", "--device", "cpu"]
IMAGES = ["--data", "digits", "--val", "digits", "--images", "16", "--limit", "40", "--epochs", "1"]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run a command on a table with one small model; gives the raw file back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published, "TABLE1", ROWS)
    monkeypatch.setattr(published, "TABLE2", MODELS)
    monkeypatch.setattr(published, "TABLE3", (ROWS[0], Row(TINY, "Uniform pruning", 90.0, 99.0, 0.03, 40.0), ROWS[2]))

    def run(main: Callable[[], None], *words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["command", *words, *QUICK, "--out", "out/table.json"])
        command(main)
        found: dict[str, Any] = json.loads(Path("out/table.json").read_text())
        return found

    return run


def test_table1_with_weights(
    call: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paper_cells.BESIDE", ("tome",))
    monkeypatch.setattr(published, "TABLE1", ROWS[:3])
    words = ["--weights", f"{TINY}={WEIGHTS}", *IMAGES]
    (block,) = call(paper_table1.main, *words)["blocks"]
    assert [row["method"] for row in block["rows"]] == ["hvt", "impact", "ps-static", "tome"]
    assert [row["published"]["top1"] for row in block["rows"][:3]] == [90.0, 98.0, 98.0]
    assert block["rows"][3]["published"] is None
    assert (block["missing"], block["published"]["top1"]) == ([], 99.0)
    assert all(row["untuned"]["images"] == 40 and row["throughput"] > 0 for row in block["rows"])
    page, shown = Path("out/table.md").read_text(), capsys.readouterr().out
    assert shown.strip() == page.strip()
    assert f"| HVT | 0.6 | 90.0 (-9.0) | 140 (1.40×) | {block['rows'][0]['macs_ratio']:.3f} |" in page
    assert "First of 4 at 0.6 of the MACs: " in page
    assert Path("out/table.png").read_bytes().startswith(b"\x89PNG")
    kept = {path: path.stat().st_mtime_ns for path in Path("comparisons").rglob("cells/*.json")}
    assert len(kept) == 5
    assert call(paper_table1.main, *words, "--resume")["blocks"] == [block]
    assert {path: path.stat().st_mtime_ns for path in Path("comparisons").rglob("cells/*.json")} == kept


def test_table3_after_recovery(call: Callable[..., dict[str, Any]]) -> None:
    words = ["--models", TINY, "--weights", f"{TINY}={WEIGHTS}", *IMAGES, "--recover", "1", "--train-images", "32"]
    words += ["--train", "digits:train"]
    (block,) = call(paper_table3.main, *words, "--recover-batch-size", "16")["blocks"]
    assert (block["images"]["count"], block["train"]["count"]) == (16, 32)
    assert [row["method"] for row in block["rows"]] == ["uniform", "impact", "ps-static"]
    assert all("top1" in row["recovered"] for row in block["rows"])
    assert block["settings"]["recover"]["epochs"] == 1
    assert "| recovered | against base |" in Path("out/table.md").read_text()


def test_what_is_missing_is_said(
    call: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paper_cells.BESIDE", ("ps-matched", "tome"))
    (block,) = call(paper_table1.main)["blocks"]
    lacks = f"weights (--weights {TINY}=FILE), labelled images (--val), images to choose patches by (--data)"
    assert f"{TINY}: no top-1, for want of {lacks}; MACs and throughput with random weights." in capsys.readouterr().err
    assert ", ".join(block["missing"]) == lacks
    assert "impact" not in {row["method"] for row in block["rows"]}
    assert all(row["reason"] is None and row["throughput"] > 0 and "untuned" not in row for row in block["rows"])
    assert all(row["target_macs"] - 0.15 < row["macs_ratio"] <= row["target_macs"] for row in block["rows"])
    assert "| 98.5 (-0.5) | 160 (1.60×) |" in Path("out/table.md").read_text()
    monkeypatch.setattr(SpeedBlock, "_row", None)
    assert call(paper_table1.main, "--resume")["blocks"] == [block]


def test_table2(call: Callable[..., dict[str, Any]]) -> None:
    table = call(paper_table2.main, "--weights", f"{TINY}={WEIGHTS}", *IMAGES)
    assert [(row["name"], row["method"]) for row in table["rows"]] == [
        *(("Digits", "host"), ("PS-Digits", "impact"), ("PS-Digits", "ps-static"), ("PS-Digits", "ps-matched")),
    ]
    host = table["rows"][0]
    model = open_model(TINY, WEIGHTS)
    images = ps.open_images("digits", model=model, limit=40, split="test")
    assert host["top1"] == evaluate(model, images).top1
    assert (host["macs"], host["parameters"]) == (ps.count_macs(model), ps.inspect(model).parameters)
    assert all(row["top1"] is not None for row in table["rows"])
    assert [row["parameters"] for row in table["rows"][:3]] == [host["parameters"]] * 3
    assert table["rows"][3]["parameters"] > host["parameters"]  # distances are its own
    assert f"| Digits | 0.05 | 99.0 | {TINY} |" in Path("out/table.md").read_text()


def test_table2_from_what_was_timed_before(
    call: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paper_cells.BESIDE", ("ps-matched",))
    monkeypatch.setattr(published, "TABLE1", ())
    timed = call(paper_throughput.main)
    Path("timed.json").write_text(json.dumps(timed | {"device": "elsewhere"}))
    (block,) = timed["blocks"]
    monkeypatch.setattr(SpeedBlock, "run", None)
    table = call(paper_table2.main, "--throughput", "timed.json")
    rates = {row["method"]: row["throughput"] for row in (block["host"], *block["rows"])}
    assert {row["method"]: row["throughput"] for row in table["rows"]} == rates
    assert table["device"] == "elsewhere"
    page = Path("out/table.md").read_text()
    assert "- No top-1, for want of weights (--weights MODEL=FILE), labelled images (--val): Digits.\n" in page
    Path("timed.json").write_text("{}")
    with pytest.raises(SystemExit) as exited:
        call(paper_table2.main, "--throughput", "timed.json")
    assert exited.value.code == 2
    assert "timed.json is no file of paper_throughput.py: it has no device." in capsys.readouterr().err


def test_throughput_goes_on_after_a_failure(
    call: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    honest = Watch.time

    def failing(self: Watch, model: Any, **how: Any) -> Any:
        if getattr(model, "plan", None) is not None and model.plan.select == "predicted":
            raise ZeroDivisionError("by nought")
        return honest(self, model, **how)

    monkeypatch.setattr(Watch, "time", failing)
    monkeypatch.setattr("paper_cells.BESIDE", ("ps-matched", "tome"))
    (block,) = call(paper_throughput.main)["blocks"]
    reasons = {row["method"]: row["reason"] for row in block["rows"]}
    assert {name for name, reason in reasons.items() if reason} == {"dps", "ps-predicted"}
    assert reasons["dps"] == "ZeroDivisionError: by nought"
    assert block["base"]["speedup"] == 1.0
    assert all(
        row["speedup"] == row["throughput"] / row["base_throughput"] for row in block["rows"] if not row["reason"]
    )
    page = Path("out/table.md").read_text()
    assert "DPS, patchslim's: ZeroDivisionError: by nought." in page
    kept = {path.stem for path in (tmp_path / "comparisons" / "table" / TINY / "cells").glob("*.json")}
    assert {"base", "host", "hvt@0.6", "tome@0.5"} <= kept


def test_warming_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published, "TABLE1", ROWS[:2])
    monkeypatch.setattr(published, "TABLE2", ())
    monkeypatch.setattr(sys, "argv", ["command", "--warm", *QUICK, "--out", "out/table.json"])
    command(paper_throughput.main)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weights", "nothing"], "Weights are given as MODEL=FILE"),
        (["--also", "1.5"], "between 0 and 1"),
        (["--modes", "quick"], "There is no mode quick"),
    ],
)
def test_bad_input(
    call: Callable[..., dict[str, Any]], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        call(paper_table1.main, *words)
    assert exited.value.code == 2
    assert said in capsys.readouterr().err


def test_the_page_is_what_was_measured(tmp_path: Path) -> None:
    page, readme = PAGE.read_text(encoding="utf-8"), README.read_text(encoding="utf-8")
    assert filled(page) == page
    assert shortened(readme) == readme
    assert all(f"<!-- {name} -->" in page for name in TEXTS)
    speed = {"batch_size": 1, "dtype": "x", "modes": ["auto"]}
    table: dict[str, Any] = {"title": "T", "recover": 0, "device": "d", "settings": {"speed": speed}}
    row: dict[str, Any] = {
        "name": "N",
        "measured": "m",
        "note": "near",
        "missing": [],
        "reason": None,
        "macs": 2e9,
        "throughput": 5.0,
    }
    table["rows"] = [row | {"published": {"gmacs": 3.0, "top1": 80.0}}]
    (tmp_path / "paper_table2_a.json").write_text(json.dumps(table))
    text = filled(page, tmp_path)
    assert "| N | 3 | 80.0 | m | – | 2 | – | 5 |" in text
    assert filled(text, tmp_path) == text
