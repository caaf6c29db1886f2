"""The formats: for each how to write a file, run it, read its metadata, and make it INT8.

Metadata is what travels in a file beside the graph: how to prepare images, the plan, and what made it. One JSON object.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.data.transform import data_config
from patchslim.errors import DataError, ExportError
from patchslim.exports import onnx_file, openvino_file, pt2_file
from patchslim.exports.pt2_file import MOST, info_of
from patchslim.files import checked
from patchslim.hosts import HostInfo
from patchslim.hosts.timm_spec import listed
from patchslim.plan import SlimPlan
from patchslim.slimmed import plan_of
from patchslim.slimmed.assemble import fingerprint
from patchslim.version import __version__

METADATA_VERSION = 1
PREPARATION = ("mean", "std", "interpolation", "crop_pct", "crop_mode")


@dataclass(frozen=True)
class Format:
    """One format. Metadata goes in and comes out as text."""

    name: str
    suffix: str
    needs: tuple[str, ...]  # packages
    int8_needs: tuple[str, ...]
    write: Callable[[nn.Module, Path, str], None]
    runner: Callable[[Path], Callable[[Tensor], Tensor]]  # it takes images (B, C, H, W) → logits (B, classes)
    read_text: Callable[[Path], str | None]
    quantise: Callable[[Path, Path, ImageSource, str], None] | None = None


class Metadata(BaseModel):
    """What travels in an exported file. Later versions may say more."""

    model_config = ConfigDict(extra="allow")

    version: Literal[1]
    patchslim: str
    host: str
    precision: Literal["fp32", "int8"]
    classes: int = Field(ge=0)
    preprocessing: dict[str, Any]
    plan: SlimPlan | None
    weights: str | None = None  # files of before have none


ONNX = (onnx_file.write, onnx_file.runner, onnx_file.read_text, onnx_file.quantise)
PT2 = (pt2_file.write, pt2_file.runner, pt2_file.read_text)
OPENVINO = (openvino_file.write, openvino_file.runner, openvino_file.read_text, openvino_file.quantise)
_ALL = (
    Format("onnx", ".onnx", ("onnx", "onnxscript", "onnxruntime"), (), *ONNX),
    Format("torch-export", ".pt2", (), (), *PT2),
    # Its IR is made from the ONNX graph.
    Format("openvino", ".xml", ("onnx", "onnxscript", "openvino"), ("nncf",), *OPENVINO),
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


def metadata_of(model: nn.Module, precision: Literal["fp32", "int8"] = "fp32") -> dict[str, Any]:
    """The metadata of a model's file; `plan` is None for a host, and for a model that was made without one."""
    info, plan = info_of(model), plan_of(model)
    return {
        "version": METADATA_VERSION,
        "patchslim": __version__,
        "host": info.name,
        "precision": precision,
        "classes": info.classes,
        "weights": fingerprint(model.state_dict()),
        "preprocessing": _preprocessing(model, info),
        "plan": None if plan is None else json.loads(plan.to_json()),
    }


def _preprocessing(model: nn.Module, info: HostInfo) -> dict[str, Any]:
    """How timm prepares a picture for the model. Where no picture has its channels, only the size is known."""
    size = {"input_size": [info.channels, *info.image_size]}
    try:
        config = data_config(model)
    except DataError:
        return size
    return size | listed({name: config[name] for name in PREPARATION if name in config})


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The metadata of a file that patchslim exported, of any format, known by the ending of its name."""
    path = Path(path)
    if not path.is_file():
        raise ExportError(f"There is no exported file at {path}.")
    text = format_of(path).read_text(path) or ""
    try:
        data = json.loads(text) if len(text) <= MOST else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise ExportError(f"{path} holds no patchslim metadata; export it with `patchslim export`.")
    if isinstance(data.get("version"), int) and data["version"] > METADATA_VERSION:
        raise ExportError(f"{path} was exported by a newer patchslim; upgrade this one to read its metadata.")
    checked(Metadata, data, ExportError, f"The patchslim metadata in {path}")
    return data
