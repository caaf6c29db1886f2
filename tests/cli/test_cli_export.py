"""`patchslim export` from a user's side."""

import json
from pathlib import Path

import pytest

import patchslim as ps
from commands import Run, image_folder, refused
from patchslim.slimmed import plan_of
from sealing import resealed
from small import make_host, plan_for, slim_of


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run folder."""
    ps.save(slim_of()[1], tmp_path / "a")
    return tmp_path / "a"


def test_export_prints_one_object(run: Run, saved: Path, tmp_path: Path) -> None:
    image_folder(tmp_path / "images", 3)
    code, out, _ = run("export", "a", "--format", "torch-export", "--data", "images", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["file"] == str(Path("a") / "model.pt2")
    assert found["files"] == [found["file"]]
    assert found["bytes"] == (saved / "model.pt2").stat().st_size
    assert (found["format"], found["precision"], found["images"], found["data"]) == (
        "torch-export",
        "fp32",
        3,
        "images",
    )
    assert found["max_difference"] < 1e-5
    assert (found["agreement"], found["ties"]) == (100, 0)
    assert found["cpu"].keys() == {"name", "int8_instructions"}
    assert plan_of(ps.load(saved)) == plan_of(slim_of()[1])


def test_int8_from_a_run(run: Run, saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    image_folder(tmp_path / "images", 5)
    code, out, err = run("export", "a", "--format", "onnx", "--int8", "--data", "images", "--out", "new/b.onnx")
    assert code == 0, err
    assert out.startswith(f"{Path('new') / 'b.onnx'}: onnx, INT8")
    assert out.count("\n") == 1
    assert ps.read_metadata(tmp_path / "new" / "b.onnx")["precision"] == "int8"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["b.onnx"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("a", "--format", "tflite"), "no format tflite"),
        (("a", "--format", "onnx", "--int8"), "--data"),
        (("a", "--format", "onnx", "--out", "b.pt2"), "ends in .onnx"),
        (("nowhere", "--format", "torch-export"), "no run folder at nowhere"),
        (("images", "--format", "torch-export"), "holds no run"),
        (("a", "--format", "torch-export", "--data", "nothing"), "nothing"),
        (("a", "--format", "torch-export", "--out", "images/0.png/b.pt2"), "can't be written"),
        (("a",), "--format"),
    ],
)
def test_bad_input_is_told(run: Run, saved: Path, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    image_folder(tmp_path / "images", 1)
    before = sorted(path for path in tmp_path.rglob("*"))
    refused(run("export", *words), told)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_run_with_thresholds_is_refused(run: Run, tmp_path: Path) -> None:
    model = make_host()
    plan, weights = plan_for(model, "threshold")
    ps.save(ps.apply(model, plan, weights), tmp_path / "a")
    refused(run("export", "a", "--format", "torch-export"), "threshold")


def test_a_plan_for_another_image_size_is_refused(run: Run, saved: Path, tmp_path: Path) -> None:
    other = make_host(img_size=48)
    (saved / "plan.json").unlink()
    ps.full_plan(other).save(saved / "plan.json")
    resealed(saved)
    refused(run("export", "a", "--format", "torch-export"), "patches 36")
