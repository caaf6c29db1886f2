"""ONNX: written by torch's own exporter, constants folded, run by ONNX Runtime on the CPU."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.errors import ExportError
from patchslim.exports.pt2_file import for_onnx, info_of, plain_attention, to_program
from patchslim.packages import need, told

KEY = "patchslim"  # of the metadata
INPUT, OUTPUT = "images", "logits"
BATCH = 8  # images that calibration runs at a time
LARGEST = 2**31 - 2**20  # bytes of weights: a protobuf ends at 2 GiB
LINEAR = ["MatMul", "Gemm"]
AVERAGED: Mapping[str, Any] = {"CalibMovingAverage": True}  # extremes of batches, averaged; docs/notebook/decisions.md
Ranges = Literal["MinMax", "Percentile", "Entropy"]
NEWER = "a newer one may, or choose another format"
NO_LIMIT = 2**62  # a slice or a transpose of a weight is a weight, however large


def write(model: nn.Module, path: Path, metadata: str) -> None:
    """Write one file with all weights in it."""
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > LARGEST:
        raise ExportError(f"An ONNX file ends at 2 GiB and these weights take {size / 2**30:.1f}; use torch-export.")
    program = for_onnx(to_program(plain_attention(model)))
    onnx, optimizer = need("onnx"), need("onnxscript.optimizer")
    names: Any = {"input_names": [INPUT], "output_names": [OUTPUT]}
    with told(f"{info_of(model).name} can't be written as ONNX"):
        exported: Any = torch.onnx.export(program, dynamo=True, verbose=False, **names)
        optimizer.optimize_ir(exported.model, input_size_limit=NO_LIMIT, output_size_limit=NO_LIMIT)
        proto = exported.model_proto
    _describe_(proto, metadata)
    onnx.save(proto, path)


def _describe_(proto: Any, metadata: str) -> None:
    """Name the batch dimension and put the metadata in; what tells of the exporting machine's source goes."""
    graph = proto.graph
    for value in (graph.input[0], graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""
    proto.metadata_props.add(key=KEY, value=metadata)


def session(path: Path) -> Any:
    """An ONNX Runtime session on the CPU, with as many threads as torch has.

    Its threads rest when a call is over: by default they go on looking for work, and take the cores from whatever
    runs next in the process, another session or torch.
    """
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    with told(f"ONNX Runtime {runtime.__version__} can't run this model", NEWER):  # it lacks an operator, often
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def runner(path: Path) -> Callable[[Tensor], Tensor]:
    """Run a file: images (B, C, H, W) → logits (B, classes)."""
    opened = session(path)
    return lambda images: torch.from_numpy(opened.run(None, {INPUT: images.numpy()})[0])


def read_text(path: Path) -> str | None:
    """The metadata as it was written."""
    onnx = need("onnx")
    if path.stat().st_size >= 2**31:
        raise ExportError(f"{path} has more than the 2 GiB of any ONNX file of one piece; export the run again.")
    with told(f"{path} is not a readable ONNX file"):
        proto = onnx.load(path, load_external_data=False)
    return next((entry.value for entry in proto.metadata_props if entry.key == KEY), None)


class Reader:
    """Images once, in the way ONNX Runtime's calibrators read them."""

    def __init__(self, images: ImageSource) -> None:
        self._left = images.batches(BATCH)

    def get_next(self) -> dict[str, Any] | None:
        """The next batch under the input's name; None after the last."""
        return next(({INPUT: pixels.numpy()} for pixels, _ in self._left), None)


def quantise(
    source: Path,
    target: Path,
    images: ImageSource,
    metadata: str,
    *,
    ranges: Ranges = "MinMax",
    signed: bool = False,
    options: Mapping[str, Any] = AVERAGED,
) -> None:
    """Write the INT8 version of a file: linear layers only, weights per output channel, inputs by what images give.

    Attention's own products stay in fp32, and so do all outputs. `ranges` is ONNX Runtime's name of how an input's
    range comes from what the images give, `options` are further ones of its own; all of them are compared by
    `python -m benchmarks export accuracy --settings`.
    """
    onnx, quantization = need("onnx"), need("onnxruntime.quantization")
    linear = _linear_layers(onnx.load(source).graph)
    with told("ONNX Runtime can't quantise this model"):
        quantization.quantize_static(
            str(source),
            str(target),
            Reader(images),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=LINEAR,
            nodes_to_quantize=linear,
            per_channel=True,
            calibrate_method=quantization.CalibrationMethod[ranges],
            activation_type=quantization.QuantType.QInt8 if signed else quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": LINEAR, **options},
        )
    proto = onnx.load(target)
    assert any(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    del proto.metadata_props[:]
    proto.metadata_props.add(key=KEY, value=metadata)
    onnx.save(proto, target)


def _linear_layers(graph: Any) -> list[str]:
    """Names of the nodes that multiply by a weight."""
    weights = {tensor.name for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type in LINEAR and node.input[1] in weights]
