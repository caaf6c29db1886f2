"""ONNX files: they say what the model says, for any batch, and a static plan is a plain graph."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import patchslim as ps
from exports.exported import WAYS, exported, slim_way
from small import make_images

onnx: Any = pytest.importorskip("onnx")
runtime: Any = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def logits(path: Path, images: torch.Tensor) -> torch.Tensor:
    """ONNX Runtime as a user calls it."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def looks_up(path: Path) -> Counter[str]:
    """Operators that a plain ViT has not: those that choose, look up or put somewhere."""
    names = ("TopK", "NonZero", "ArgM", "CumSum", "Gather", "Scatter")
    return Counter({name: count for name, count in operators(path).items() if name.startswith(names)})


@pytest.mark.parametrize(("way", "kind"), WAYS.items())
def test_any_batch_gives_the_models_logits(way: str, kind: str) -> None:
    slim, done = exported(way, "onnx", kind)
    assert done.fp32.max_difference < 1e-4
    assert done.fp32.agreement == 100
    for count in (1, 3, 17):
        images = make_images(count, seed=count)
        torch.testing.assert_close(logits(done.files[0], images), slim(images).detach(), atol=1e-4, rtol=0)


def test_a_static_plan_is_a_plain_graph() -> None:
    for kind in ("class", "t2t"):
        done = exported("drop", "onnx", kind)[1]
        assert done.fp32.max_difference < 1e-4
        assert looks_up(done.files[0]) == {"Gather": 1}  # the entrance
    assert not looks_up(exported("everything", "onnx")[1].files[0])


def test_operators_that_choose_and_join_are_those_that_the_docs_name() -> None:
    """docs/export.md: where patches join others there are sums by place, and no other Scatter adds."""
    cover = looks_up(exported("cover", "onnx")[1].files[0])
    assert {**cover} == {"Gather": 1, "ArgMin": 1, "GatherElements": 1, "ScatterElements": 3, "ScatterND": 1}
    merge = looks_up(exported("merge", "onnx", "mean")[1].files[0])
    assert merge.keys() == {"TopK", "ArgMin", "GatherElements", "ScatterElements", "ScatterND"}
    assert merge["TopK"] == 2 * 4  # two sorts and two rounds in each of two blocks
    assert looks_up(exported("predict mlp", "onnx")[1].files[0])["TopK"] == 1


def test_weights_are_constants() -> None:
    """Rows of the qkv weight are folded, so that every linear layer multiplies by a constant: INT8 needs that."""
    graph = onnx.load(exported("drop", "onnx")[1].files[0]).graph
    names = {tensor.name for tensor in graph.initializer}
    linear = [node for node in graph.node if node.op_type in ("MatMul", "Gemm") and node.input[1] in names]
    assert len(linear) == 1 + 2 * 5 + 1  # embedding; q, kv, proj, fc1, fc2 of two blocks; head
    onnx.checker.check_model(onnx.load(exported("drop", "onnx")[1].files[0]), full_check=True)


def test_the_batch_has_a_name() -> None:
    graph = onnx.load(exported("drop", "onnx")[1].files[0]).graph
    for value, size in ((graph.input[0], [3, 32, 32]), (graph.output[0], [7])):
        first, *others = value.type.tensor_type.shape.dim
        assert first.dim_param == "batch"
        assert [other.dim_value for other in others] == size


def test_int8_runs_and_stays_close(tmp_path: Path) -> None:
    slim, plain = exported("drop", "onnx")
    images = make_images(40)
    done = ps.export(slim, tmp_path / "a.onnx", "onnx", images=images, int8=True)
    assert done.int8 is not None
    assert done.fp32.max_difference < 1e-4
    assert done.int8.agreement >= 90
    assert done.bytes < plain.bytes
    found, wanted = logits(done.files[0], images), slim(images).detach()
    assert float((found - wanted).norm() / wanted.norm()) < 0.1
    assert float((found - wanted).abs().max()) == pytest.approx(done.int8.max_difference, abs=1e-5)
    assert ps.read_metadata(done.files[0])["precision"] == "int8"
    quantised = operators(done.files[0])["QuantizeLinear"]
    assert quantised >= 12  # an input of every linear layer
    assert not list(tmp_path.glob(".patchslim*"))


def test_an_operator_the_runtime_lacks_is_told(tmp_path: Path) -> None:
    from patchslim.exports import onnx_file

    path = tmp_path / "a.onnx"
    shutil.copy(exported("drop", "onnx")[1].files[0], path)
    proto = onnx.load(path)
    next(node for node in proto.graph.node if node.op_type == "Gelu").op_type = "NewerGelu"
    onnx.save(proto, path)
    with pytest.raises(ps.ExportError, match=r"can't run this model \(.*NewerGelu.*choose another format"):
        onnx_file.runner(path)


def test_weights_beyond_a_protobuf_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from patchslim.exports import onnx_file

    monkeypatch.setattr(onnx_file, "LARGEST", 1000)
    with pytest.raises(ps.ExportError, match="2 GiB"):
        ps.export(slim_way("drop"), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []
