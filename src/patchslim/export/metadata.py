"""What travels in a file beside the graph: how to prepare images, the plan, and what made it. One JSON object."""

import json
from pathlib import Path
from typing import Any, Literal

from torch import nn

from patchslim.data.transform import data_config
from patchslim.errors import DataError, ExportError
from patchslim.export.formats import format_of
from patchslim.export.program import info_of
from patchslim.hosts import HostInfo
from patchslim.hosts.timm_spec import listed
from patchslim.slim import plan_of
from patchslim.version import __version__

METADATA_VERSION = 1
PREPARATION = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
Precision = Literal["fp32", "int8"]


def metadata_of(model: nn.Module, precision: Precision = "fp32") -> dict[str, Any]:
    """The metadata of a model's file; `plan` is None for a host, and for a model that was made without one."""
    info, plan = info_of(model), plan_of(model)
    return {
        "version": METADATA_VERSION,
        "patchslim": __version__,
        "host": info.name,
        "precision": precision,
        "classes": info.classes,
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
    text = format_of(path).read_text(path)
    try:
        data = json.loads(text or "")
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ExportError(f"{path} holds no patchslim metadata; export it with `patchslim export`.")
    return data
