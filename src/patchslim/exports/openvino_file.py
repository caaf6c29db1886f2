"""OpenVINO's IR: an .xml and the .bin beside it, made from the ONNX graph."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.errors import ExportError
from patchslim.exports import onnx_file
from patchslim.packages import need, need_nncf, told

KEY = "patchslim"  # of the metadata, in rt_info
SMOOTH = -1.0  # none; docs/notebook/decisions.md


def write(model: nn.Module, path: Path, metadata: str) -> None:
    """Write `path`, an .xml, and its .bin. Weights stay fp32: the default halves them."""
    need("openvino")
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "model.onnx"
        onnx_file.write(model, graph, metadata)
        convert(graph, path, metadata)


def convert(graph: Path, path: Path, metadata: str) -> None:
    """Write an ONNX file's graph as OpenVINO's, which is told that equal values keep their order: in ONNX they do."""
    model = _read(graph)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "TopK":
            node.set_attribute("stable", True)
    _save(model, path, metadata)


def _read(path: Path) -> Any:
    openvino, weights = need("openvino"), path.with_suffix(".bin")
    if path.suffix == ".xml" and not weights.is_file():
        raise ExportError(f"{weights} is missing, which holds the weights of {path}; put it back, or export anew.")
    with told(f"OpenVINO {openvino.__version__} can't read this model", onnx_file.NEWER):
        return openvino.Core().read_model(path)


def _save(graph: Any, path: Path, metadata: str) -> None:
    graph.set_rt_info(metadata, [KEY])
    need("openvino").save_model(graph, path, compress_to_fp16=False)


def compiled(path: Path) -> Any:
    """The model compiled for the CPU, with as many threads as torch has, in the precision it was written in."""
    openvino = need("openvino")
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",  # bf16 otherwise, where the CPU has it
        "PERFORMANCE_HINT": "LATENCY",
    }
    with told(f"OpenVINO {openvino.__version__} can't run this model", onnx_file.NEWER):
        return openvino.Core().compile_model(_read(path), "CPU", settings)


def runner(path: Path) -> Callable[[Tensor], Tensor]:
    """Run a file: images (B, C, H, W) → logits (B, classes)."""
    request = compiled(path).create_infer_request()
    return lambda images: torch.from_numpy(request.infer([images.numpy()])[0].copy())


def read_text(path: Path) -> str | None:
    """The metadata as it was written."""
    graph = _read(path)
    return str(graph.get_rt_info([KEY]).value) if graph.has_rt_info([KEY]) else None


@dataclass(frozen=True)
class Arrays:
    """The images of a source one by one, (1, C, H, W), any number of times: as nncf reads them."""

    images: ImageSource

    def __iter__(self) -> Iterator[Any]:
        return (pixels.numpy() for pixels, _ in self.images.batches(1))


def quantise(
    source: Path,
    target: Path,
    images: ImageSource,
    metadata: str,
    *,
    smooth: float = SMOOTH,
    correct_biases: bool = False,
) -> None:
    """Write the INT8 version of a file, by nncf's settings for transformers; attention's own products stay in fp32.

    `smooth` is how far outliers move from inputs to weights, SmoothQuant's α; what it brings is measured by
    `python -m benchmarks export accuracy --settings`.
    """
    nncf, graph = need_nncf(), _read(source)
    with told("nncf can't quantise this model"):
        quantised = nncf.quantize(
            graph,
            nncf.Dataset(Arrays(images)),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(images),
            ignored_scope=nncf.IgnoredScope(names=_attention_products(graph), validate=False),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=smooth),
                disable_bias_correction=not correct_biases,
            ),
        )
    _save(quantised, target, metadata)


def _attention_products(graph: Any) -> list[str]:
    """Names of the nodes that multiply by something else than a weight."""
    products = [node for node in graph.get_ordered_ops() if node.get_type_name() == "MatMul"]
    return [node.get_friendly_name() for node in products if not _is_weight(node.input(1).get_source_output())]


def _is_weight(output: Any) -> bool:
    node = output.get_node()
    kind = node.get_type_name()
    turned = kind in ("Convert", "Transpose", "Reshape") and _is_weight(node.input(0).get_source_output())
    return kind == "Constant" or turned
