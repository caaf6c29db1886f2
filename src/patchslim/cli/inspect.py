"""`patchslim inspect`: what a model is made of, and whether it can be slimmed."""

from __future__ import annotations

from typing import Any

from patchslim.cli.common import (
    AsJson,
    Checkpoint,
    ImgSize,
    Model,
    ReadoutOption,
    is_run,
    open_model,
    refuse_with_run,
    report,
)
from patchslim.hosts import inspect
from patchslim.macs import count_macs
from patchslim.methods import DEFAULT, make
from patchslim.runs.store import load_host


def inspect_model(
    model: Model,
    checkpoint: Checkpoint = None,
    img_size: ImgSize = None,
    readout: ReadoutOption = None,
    as_json: AsJson = False,
) -> None:
    """Tell a model's depth, width, heads, tokens, readout and MACs, and whether it can be slimmed."""
    if is_run(model):
        refuse_with_run(model, checkpoint=checkpoint, img_size=img_size, readout=readout)
        network = load_host(model)
    else:
        network = open_model(model, checkpoint, img_size=img_size, readout=readout)
    info = inspect(network)
    low, high = make(DEFAULT).draft(info).reachable()
    result: dict[str, Any] = {
        "model": info.name,
        "supported": True,
        "family": info.family,
        "depth": info.depth,
        "width": info.width,
        "heads": info.heads,
        "prefix_tokens": info.prefix_tokens,
        "patches": info.patches,
        "grid": list(info.grid),
        "image_size": list(info.image_size),
        "readout": info.readout,
        "classes": info.classes,
        "parameters": info.parameters,
        "macs": count_macs(network),
        "reachable_macs_ratio": [round(low, 4), round(high, 4)],
    }
    report(result, as_json, "\n".join(f"{name.replace('_', ' '):>20}  {value}" for name, value in result.items()))
