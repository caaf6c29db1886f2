"""OpenVINO files: they say what the model says, for any batch, in fp32 and about so in INT8."""

from pathlib import Path
from typing import Any

import pytest
import torch

import patchslim as ps
from exports.exported import WAYS, exported
from patchslim.data import tensor_images
from patchslim.exports import openvino_file
from patchslim.exports.parity import compare
from small import make_images

openvino: Any = pytest.importorskip("openvino")
pytest.importorskip("onnxscript")


def logits(path: Path, images: torch.Tensor) -> torch.Tensor:
    """OpenVINO as a user calls it."""
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return torch.from_numpy(openvino.compile_model(path, "CPU", settings)(images.numpy())[0])


def test_any_batch_gives_the_models_logits() -> None:
    slim, done = exported("drop", "openvino")
    assert [path.suffix for path in done.files] == [".xml", ".bin"]
    assert done.fp32.max_difference < 1e-4
    for count in (1, 3):
        images = make_images(count, seed=count)
        torch.testing.assert_close(logits(done.files[0], images), slim(images).detach(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("way", "kind"), WAYS.items())
def test_every_way_of_slimming(way: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    slim, done = exported(way, "onnx", kind)  # what its files are made from
    openvino_file.convert(done.files[0], tmp_path / "a.xml", "{}")
    found = compare(slim, openvino_file.runner(tmp_path / "a.xml"), tensor_images(make_images(9)))
    assert (found.agreement, found.ties) == (100, 0)
    assert found.max_difference < 1e-4


def test_int8_runs_and_stays_close(tmp_path: Path) -> None:
    pytest.importorskip("nncf")
    slim, plain = exported("drop", "openvino")
    images = make_images(20)
    done = ps.export(slim, tmp_path / "a.xml", "openvino", images=images, int8=True)
    assert done.int8 is not None
    assert done.int8.agreement >= 90
    found, wanted = logits(done.files[0], images), slim(images).detach()
    assert float((found - wanted).norm() / wanted.norm()) < 0.15
    assert done.files[1].stat().st_size < plain.files[1].stat().st_size / 2
    assert ps.read_metadata(done.files[0])["precision"] == "int8"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.xml"]


def test_a_file_it_cannot_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text("<net></net>")
    with pytest.raises(ps.ExportError, match=r"a\.bin is missing, which holds the weights of .*a\.xml; put it back"):
        ps.read_metadata(path)
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(ps.ExportError, match=r"OpenVINO .* can't read"):
        ps.read_metadata(path)
