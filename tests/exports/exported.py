"""Small slim models and their files, made once for all tests of export: exporting is what takes time here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from torch import Tensor, nn

import patchslim as ps
from patchslim.exports import Exported, open_format
from patchslim.plan import SlimPlan, make_plan
from patchslim.steps.evit import EViT
from patchslim.steps.keep import Keep
from small import PYRAMID, covering, make_host, merging, plan_of, predicting

DEPTH = 2
KEPT = [PYRAMID[0], PYRAMID[1]]
WAYS = {  # as files of runtimes, with the host to see them on: where it reads patches, two blocks choose
    **dict.fromkeys(("drop", "cover", "predict mlp", "predict merging mlp", "tome", "everything"), "class"),
    **dict.fromkeys(("merge", "merge dropping"), "mean"),
}
COUNTS = [11, 7]  # where only the prefix is read, the last block computes no patch


def planned(model: nn.Module, way: str) -> tuple[SlimPlan, dict[str, Tensor]]:
    """A plan of a way that can be exported, and what its steps own; `predict` is followed by G's kind."""
    info = ps.inspect(model)
    if way in ("drop", "carry"):
        return plan_of(model, KEPT, "slice" if way == "drop" else "carry"), {}
    if way == "tome":
        return make_plan(info, ps.methods.ToMe().steps(info, [5, 3])), {}
    if way == "evit":
        return make_plan(info, [EViT(n=9), Keep()]), {}
    if way.startswith("merge"):
        return merging(model, COUNTS, drops=(1,) if "dropping" in way else ())
    if way.startswith("predict"):
        return predicting(model, "merging" in way, COUNTS, selector=way.split()[-1])
    return covering(model, KEPT) if way == "cover" else (ps.full_plan(model), {})


@cache
def slim_way(way: str, kind: str = "class") -> Any:
    """A slim model of each way that can be exported."""
    model = make_host(kind, depth=DEPTH)
    return ps.apply(model, *planned(model, way))


@cache
def exported(way: str, format: str, kind: str = "class", *, host: bool = False) -> tuple[nn.Module, Exported]:
    """A slim model and its file, checked on noise."""
    model = make_host(kind, depth=DEPTH) if host else slim_way(way, kind)
    path = Path(mkdtemp(prefix="patchslim-test-")) / f"model{open_format(format).suffix}"
    return model, ps.export(model, path, format)
