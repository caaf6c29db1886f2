"""What travels in the files."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import timm

import patchslim as ps
from exports.exported import exported
from patchslim.exports import metadata_of
from patchslim.plan import SlimPlan
from small import make_host, slim_of


@pytest.mark.parametrize("format", ["onnx", "openvino", "torch-export"])
def test_metadata_come_back(format: str) -> None:
    for package in {"onnx": ["onnxscript", "onnxruntime"], "openvino": ["onnxscript", "openvino"]}.get(format, []):
        pytest.importorskip(package)
    slim: Any
    slim, done = exported("drop", format)
    found = ps.read_metadata(str(done.files[0]))
    assert found == metadata_of(slim)
    assert SlimPlan.model_validate(found["plan"]) == slim.plan
    assert (found["patchslim"], found["host"], found["precision"]) == (ps.__version__, slim.plan.host.name, "fp32")
    assert found["preprocessing"]["input_size"] == [3, 32, 32]


@pytest.mark.parametrize("format", ["onnx", "openvino", "torch-export"])
def test_files_tell_nothing_of_the_machine(format: str) -> None:
    for package in {"onnx": ["onnxscript", "onnxruntime"], "openvino": ["onnxscript", "openvino"]}.get(format, []):
        pytest.importorskip(package)
    for path in exported("drop", format)[1].files:
        data = path.read_bytes()
        assert b"site-packages" not in data
        assert str(Path(ps.__file__).parent).encode() not in data


def test_preprocessing_is_timms() -> None:
    model = timm.create_model("deit_tiny_patch16_224", img_size=96).eval()
    assert metadata_of(model)["preprocessing"] == {
        "input_size": [3, 96, 96],
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
    }
    assert metadata_of(make_host(in_chans=5))["preprocessing"] == {"input_size": [5, 32, 32]}


def test_files_without_metadata_are_told(tmp_path: Path) -> None:
    with pytest.raises(ps.ExportError, match="no exported file"):
        ps.read_metadata(tmp_path / "a.pt2")
    for name, text in (("a.pt2", None), ("b.pt2", "no JSON"), ("c.pt2", json.dumps([1]))):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("a/models/model.json", "{}")
            if text is not None:
                archive.writestr("a/extra/patchslim.json", text)
        with pytest.raises(ps.ExportError, match="holds no patchslim metadata"):
            ps.read_metadata(tmp_path / name)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ps.ExportError, match=r"they end in \.onnx, \.pt2, \.xml"):
        ps.read_metadata(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("version", 2, "was exported by a newer patchslim"),
        ("classes", -1, "is not valid: classes"),
        ("precision", "fp64", "is not valid: precision"),
        ("plan", {"version": 4}, "is not valid: plan"),
        ("preprocessing", None, "is not valid: preprocessing"),
        ("host", None, "is not valid: host"),
    ],
)
def test_damaged_metadata_is_told(tmp_path: Path, key: str, value: Any, words: str) -> None:
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/extra/patchslim.json", json.dumps(metadata_of(slim_of()[1]) | {key: value}))
    with pytest.raises(ps.ExportError, match=words):
        ps.read_metadata(path)


def test_metadata_that_unfolds_without_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/extra/patchslim.json", b" " * 2**28)
    assert path.stat().st_size < 2**20
    with pytest.raises(ps.ExportError, match="holds no patchslim metadata"):
        ps.read_metadata(path)


def test_the_fingerprint_is_that_of_the_weights() -> None:
    slim = slim_of()[1]
    before = metadata_of(slim)["weights"]
    assert before == metadata_of(slim_of()[1])["weights"]
    next(slim.parameters()).data.add_(1)
    assert metadata_of(slim)["weights"] != before
