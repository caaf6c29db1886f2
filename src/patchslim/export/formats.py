"""The formats: for each how to write a file, run it, read its metadata, and make it INT8."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.errors import ExportError
from patchslim.export import onnx_file, openvino_file, pt2_file

Runner = Callable[[Tensor], Tensor]  # images (B, C, H, W) → logits (B, classes)


@dataclass(frozen=True)
class Format:
    """One format. Metadata goes in and comes out as text."""

    name: str
    suffix: str
    needs: tuple[str, ...]  # packages
    int8_needs: tuple[str, ...]
    write: Callable[[nn.Module, Path, str], None]
    runner: Callable[[Path], Runner]
    read_text: Callable[[Path], str | None]
    quantise: Callable[[Path, Path, ImageSource, str], None] | None = None


ONNX = (onnx_file.write, onnx_file.runner, onnx_file.read_text, onnx_file.quantise)
PT2 = (pt2_file.write, pt2_file.runner, pt2_file.read_text)
OPENVINO = (openvino_file.write, openvino_file.runner, openvino_file.read_text, openvino_file.quantise)
_ALL = (
    Format("onnx", ".onnx", ("onnx", "onnxscript", "onnxruntime"), (), *ONNX),
    Format("torch-export", ".pt2", (), (), *PT2),
    Format("openvino", ".xml", ("onnx", "onnxscript", "openvino"), ("nncf",), *OPENVINO),  # made from the ONNX graph
)
FORMATS = {each.name: each for each in _ALL}


def open_format(name: str) -> Format:
    """The format of this name."""
    if name not in FORMATS:
        raise ExportError(f"There is no format {name}; choose one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def format_of(path: Path) -> Format:
    """The format of a file by the ending of its name."""
    for each in _ALL:
        if path.suffix == each.suffix:
            return each
    endings = ", ".join(each.suffix for each in _ALL)
    raise ExportError(f"{path} is no exported file by its name; they end in {endings}.")
