"""Small slim models and their files, made once for all tests of export: exporting is what takes time here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import nn

import patchslim as ps
from patchslim.export import Exported, open_format
from small import PYRAMID, make_host, merge_plan, own_plan, per_image_plan, plan_of

DEPTH = 2
KEPT = [PYRAMID[0], PYRAMID[1]]
COUNTS = [11, 0]


@cache
def slim_way(way: str, kind: str = "class") -> Any:
    """A slim model of each way of choosing that can be exported."""
    model = make_host(kind, depth=DEPTH)
    counts = COUNTS if kind == "class" else [11, 7]
    weights: dict[str, torch.Tensor] = {}
    if way == "everything":
        plan = ps.full_plan(model)
    elif way in ("drop", "carry"):
        plan = plan_of(model, KEPT, way)
    elif way == "merge":
        plan = own_plan(model, KEPT)
    elif way == "fixed groups":
        plan = merge_plan(model, KEPT)
    elif way == "matched":
        plan, weights = per_image_plan(model, "matched", "merge", counts)
    else:
        predictor = way.split()[1]
        plan, weights = per_image_plan(model, "predicted", "drop", counts, kind=predictor)
    return ps.apply(model, plan, weights)


@cache
def exported(way: str, format: str, kind: str = "class", *, host: bool = False) -> tuple[nn.Module, Exported]:
    """A slim model and its file, checked on noise."""
    model = make_host(kind, depth=DEPTH) if host else slim_way(way, kind)
    path = Path(mkdtemp(prefix="patchslim-test-")) / f"model{open_format(format).suffix}"
    return model, ps.export(model, path, format)
