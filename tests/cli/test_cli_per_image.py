"""Runs by which images choose for themselves, from the command line."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import call
from patchslim.errors import PatchslimError
from patchslim.slim import packed_attention

SLIM = ["slim", "digits_vit", "--pretrained", "--data", "digits", "--images", "8", "--target-macs", "0.6"]
WAYS = {
    "matched": ["--select", "matched"],
    "static merge": [],
    "fixed groups": ["--groups", "fixed"],
    "predicted": ["--select", "predicted", "--removed", "drop"],
    "threshold": ["--select", "predicted", "--mode", "threshold"],
}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, the JSON object, everything said beside it)."""
    code = call(*words, "--json")
    found = capsys.readouterr()
    return code, json.loads(found.out) if found.out.strip() else {}, found.err


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    for name, words in WAYS.items():
        assert call(*SLIM, *words, "--out", str(folder / name)) == 0
    return {name: folder / name for name in WAYS}


@pytest.mark.parametrize("way", WAYS)
def test_slim_eval_bench(way: str, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads((runs[way] / "metrics.json").read_text())
    assert 0.5 < made["macs_ratio"] <= 0.6
    assert (runs[way] / "predictor.safetensors").exists() == (way in ("predicted", "threshold"))
    code, found, _ = run(capsys, "eval", str(runs[way]), "--data", "digits", "--limit", "60")
    assert code == 0
    assert found["top1"] > 60
    spread = found["image_macs"]
    if way == "threshold":
        assert spread["p5"] < spread["mean"] < spread["p95"]
        assert found["macs"] == round(spread["mean"])
    else:
        assert spread is None
        assert found["macs"] == made["macs"]
    bench = ["bench", str(runs[way]), "--batch-size", "4", "--seconds", "0.1", "--data", "digits", "--mode", "eager"]
    code, found, _ = run(capsys, *bench)
    assert code == 0
    assert found["ideal_speedup"] > 1.2


def test_a_finished_run_is_left_alone(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before = (runs["predicted"] / "plan.json").read_bytes()
    code, found, _ = run(capsys, *SLIM, *WAYS["predicted"], "--out", str(runs["predicted"]), "--resume")
    assert code == 0
    assert found["macs_ratio"] <= 0.6
    assert (runs["predicted"] / "plan.json").read_bytes() == before


def test_a_predictor_of_another_run_is_refused(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs["predicted"], tmp_path / "mixed")
    code, _, _ = run(capsys, *SLIM, *WAYS["predicted"], "--seed", "1", "--out", str(tmp_path / "other"))
    assert code == 0
    shutil.copy(tmp_path / "other" / "predictor.safetensors", tmp_path / "mixed" / "predictor.safetensors")
    code, _, said = run(capsys, "eval", str(tmp_path / "mixed"), "--data", "digits", "--limit", "4")
    assert code == 2
    assert "another model or plan" in said
    (tmp_path / "mixed" / "predictor.safetensors").unlink()
    code, _, said = run(capsys, "eval", str(tmp_path / "mixed"), "--data", "digits", "--limit", "4")
    assert code == 2
    assert "predictor.safetensors" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--select", "matched", "--removed", "carry"], "can't be carried along"),
        (["--select", "matched", "--mode", "threshold"], "A threshold goes with predicted"),
        (["--select", "predicted", "--mode", "threshold", "--removed", "merge"], "A threshold goes with predicted"),
        (["--select", "matched", "--score", "impact"], "leave the score out"),
        (["--select", "matched", "--tune-epochs", "2"], "Block tuning goes with the paper's Algorithm 1"),
        (["--select", "predicted", "--score", "radial"], "radial is alike for all images"),
    ],
)
def test_what_does_not_go_together_is_told(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = run(capsys, *SLIM, *words, "--out", str(tmp_path / "run"))
    assert code == 2
    assert told in " ".join(said.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("way", WAYS)
def test_an_impossible_budget_is_told(way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word if word != "0.6" else "0.02" for word in SLIM]
    code, _, said = run(capsys, *words, *WAYS[way], "--out", str(tmp_path / "run"))
    assert code == 2
    assert "can't be reached" in said
    assert not (tmp_path / "run").exists()


def test_the_fallback_of_packed_attention_is_told_in_one_line(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    packed_attention.say_once.cache_clear()
    code, _, said = run(capsys, "eval", str(runs["threshold"]), "--data", "digits", "--limit", "9", "--batch-size", "3")
    assert code == 0
    assert [line for line in said.splitlines() if "packed attention" in line] == [
        "There is no packed attention for float32 on cpu, so images attend one after the other; results are the same."
    ]


def test_bench_of_a_threshold_needs_images(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = run(capsys, "bench", str(runs["threshold"]))
    assert code == 2
    assert "--data" in said
    code, _, said = run(capsys, "bench", str(runs["threshold"]), "--data", "digits", "--compile")
    assert code == 2
    assert "compiled" in said


@pytest.mark.parametrize(
    ("way", "device", "images"),
    [("matched", "cuda", 1024), ("threshold", "cuda", 1024), ("static merge", "cuda", 256), ("matched", "cpu", 256)],
)
def test_how_many_images_choose_unless_somebody_says(
    way: str, device: str, images: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = import_module("patchslim.cli.slim")
    limits = []

    def opened(*args: object, limit: int, **others: object) -> None:
        limits.append(limit)
        raise PatchslimError("That is all this test wants to know.")

    monkeypatch.setattr(module, "open_device", lambda name: torch.device(device))
    monkeypatch.setattr(module, "open_images", opened)
    unsaid = [word for word in SLIM if word not in ("--images", "8")]
    for words in (unsaid, SLIM):
        assert call(*words, *WAYS[way], "--out", str(tmp_path / "run")) == 2
    assert limits == [images, 8]
    assert not (tmp_path / "run").exists()
