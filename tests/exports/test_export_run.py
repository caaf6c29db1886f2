"""What can go wrong in an export ends in one sentence and leaves nothing behind."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from exports.exported import slim_way
from patchslim.data import tensor_images
from patchslim.exports import parity
from patchslim.exports.formats import FORMATS, Format
from small import make_host, make_images, plan_for


def wrong(difference: float) -> Callable[[Path], Callable[[Tensor], Tensor]]:
    """A runtime that is off by so much."""
    slim = slim_way("drop")
    return lambda path: lambda images: (slim(images) + difference).detach()


def with_runner(monkeypatch: pytest.MonkeyPatch, runner: Any) -> None:
    """torch-export with another runtime."""
    usual = FORMATS["torch-export"]
    changed = Format("torch-export", ".pt2", (), (), usual.write, runner, usual.read_text)
    monkeypatch.setitem(FORMATS, "torch-export", changed)


def test_a_file_that_says_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt2"
    path.write_text("older")
    with_runner(monkeypatch, wrong(2e-3))
    with pytest.raises(
        ps.ExportError, match=r"over 32 images logits differ by up to 0\.002 .*100\.00 % of the answers"
    ):
        ps.export(slim_way("drop"), path, "torch-export")
    with_runner(monkeypatch, wrong(float("nan")))
    with pytest.raises(ps.ExportError, match="not finite"):
        ps.export(slim_way("drop"), path, "torch-export")
    assert path.read_text() == "older"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pt2"]
    with_runner(monkeypatch, wrong(1e-4))
    done = ps.export(slim_way("drop"), path, "torch-export")
    assert done.fp32.max_difference == pytest.approx(1e-4, rel=0.02)


def test_a_file_that_does_not_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(images: Tensor) -> Tensor:
        raise RuntimeError("no such kernel\nat line 3")

    with_runner(monkeypatch, lambda path: broken)
    with pytest.raises(ps.ExportError, match="does not run: no such kernel; it was not kept"):
        ps.export(slim_way("drop"), tmp_path / "a.pt2", "torch-export")
    assert list(tmp_path.iterdir()) == []


def test_ties_are_told_from_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that answers for an image with a little noise is excused; one that is off by as much is not."""
    slim, images = slim_way("merge"), make_images(4)
    monkeypatch.setattr(parity, "JITTER", 3.0)  # every image's patches hang on noise like this
    generator = torch.Generator().manual_seed(0)
    noise = parity.JITTER * torch.randn(parity.COPIES, 3, 32, 32, generator=generator)
    with torch.no_grad():
        other = slim(images[:1] + noise[5])
        wanted = slim(images)

    def run(pixels: Tensor) -> Tensor:
        logits: Tensor = other if len(pixels) == 1 else wanted[1:]
        return logits

    found = parity.compare(slim, run, tensor_images(images))
    assert (found.images, found.ties, found.agreement) == (4, 1, 100)
    assert found.max_difference < 1e-5  # rounding: three images and four are other products on some CPUs
    assert found.other_answers == int(other.argmax() != wanted[0].argmax())
    assert parity.compare(slim, run, tensor_images(images), find_ties=False).max_difference > 1e-3
    off = parity.compare(slim, lambda pixels: run(pixels) + 0.5, tensor_images(images))
    assert off.ties == 0
    with pytest.raises(ps.ExportError, match="does not say what the model says"):
        parity.check(off)


@pytest.mark.parametrize(
    ("format", "name", "settings", "words"),
    [
        ("tensorrt", "a.engine", {}, "no format tensorrt; choose one of onnx, torch-export, openvino"),
        ("onnx", "a.pb", {}, "ends in .onnx"),
        ("torch-export", "folder.pt2", {}, "is a folder"),
        ("onnx", "a.onnx", {"int8": True}, "give some"),
        ("torch-export", "a.pt2", {"int8": True, "images": make_images(2)}, "INT8 goes with onnx and openvino"),
        ("torch-export", "file/a.pt2", {}, "can't be written"),
        (
            "torch-export",
            "a.pt2",
            {"images": make_images(2, size=48)},
            "48x48 pixels, the model takes 3 channels of 32x32",
        ),
    ],
)
def test_bad_requests(tmp_path: Path, format: str, name: str, settings: dict[str, Any], words: str) -> None:
    (tmp_path / "folder.pt2").mkdir()
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ps.PatchslimError, match=words):
        ps.export(slim_way("drop"), tmp_path / name, format, **settings)
    assert sorted(tmp_path.iterdir()) == before


def test_thresholds_cannot_be_exported(tmp_path: Path) -> None:
    model = make_host()
    plan, weights = plan_for(model, "threshold")
    with pytest.raises(ps.ExportError, match="another number of patches"):
        ps.export(ps.apply(model, plan, weights), tmp_path / "a.pt2", "torch-export")


@pytest.mark.parametrize(
    ("format", "missing"), [("onnx", "onnxruntime"), ("onnx", "onnxscript"), ("openvino", "openvino")]
)
def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, missing: str
) -> None:
    usual = importlib.import_module

    def without(name: str) -> Any:
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)
        return usual(name)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ps.ExportError, match=rf"package {missing}.*pip install 'patchslim\[export\]'"):
        ps.export(slim_way("drop"), tmp_path / f"a{FORMATS[format].suffix}", format)


def test_a_broken_int8_file_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = FORMATS["torch-export"]
    flipped = Format(
        *("torch-export", ".pt2", (), (), usual.write),
        lambda path: lambda images: slim_way("drop")(images).detach() * (-1 if path.stem == "int8" else 1),
        usual.read_text,
        lambda source, target, images, metadata: None,
    )
    monkeypatch.setitem(FORMATS, "torch-export", flipped)
    with pytest.raises(ps.ExportError, match="In INT8 only"):
        ps.export(slim_way("drop"), tmp_path / "a.pt2", "torch-export", images=make_images(5), int8=True)
    assert list(tmp_path.iterdir()) == []
