"""What questions about exported files share: slim models, INT8 files, and the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import patchslim as ps
from benchmarks.inputs import OWN_FAULT, Chosen, in_memory
from benchmarks.rows import Row, about
from benchmarks.speed import about_model
from benchmarks.table import Column, number, place
from patchslim.data import TensorImages
from patchslim.exports import onnx_file, openvino_file
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs

CPU = torch.device("cpu")
RUNTIMES = "onnx,openvino"
HISTOGRAMS = 64  # images that ONNX Runtime's ranges by histogram are calibrated on: it keeps all that they give
Sample = Annotated[int, typer.Option("--images", help="To choose by and to calibrate on, a sample of --data.")]
Data = Annotated[str, typer.Option("--data", help="Unlabelled images.")]
Runtimes = Annotated[str, typer.Option("--runtimes", metavar="A,B")]
FILE: dict[str, Column] = {
    "runtime": place("runtime"),
    "dtype": number("dtype", ""),
    "MACs": number("macs_ratio", ".3f"),
}


def slimmed(
    host: nn.Module, methods: list[Chosen], data: str, ratio: float, images: int, seed: int
) -> Iterator[tuple[Chosen, nn.Module | str]]:
    """Each method's slim model, or why there is none."""
    source = in_memory(data, host, images, seed)
    for chosen in methods:
        try:
            yield chosen, ps.slim(host, source, chosen.method, macs=ratio, seed=seed)
        except OWN_FAULT as error:
            yield chosen, str(error)


def about_slim(slim: Any, chosen: Chosen | None, ratio: float, info: HostInfo) -> dict[str, Any]:
    """What a row says of a model; of None, the host."""
    if chosen is None:
        return {"method": "host", "macs": host_macs(info), "macs_ratio": 1.0}
    if isinstance(slim, nn.Module):
        return about_model(slim, chosen, ratio, info)
    return {"method": chosen.name, "settings": chosen.settings, "target_macs": ratio}


def quantise(runtime: str, plain: Path, coarse: Path, source: TensorImages, setting: dict[str, Any]) -> None:
    """One INT8 file."""
    few = source.subset(range(min(HISTOGRAMS, len(source)))) if "ranges" in setting else source
    make: Any = onnx_file.quantise if runtime == "onnx" else openvino_file.quantise
    make(plain, coarse, few, "{}", **setting)


def row_of(question: str, model: str, known: dict[str, Any], **point: Any) -> Row:
    """A row, with the versions of the runtimes."""
    head = about(CPU) | {"question": f"export-{question}", "model": model}
    head["versions"] |= {name: str(__import__(name).__version__) for name in ("onnxruntime", "openvino")}
    return Row(**head | known, point=point)
