"""Searches that measure, on small hosts, for the tests of them."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.hosts import HostInfo
from patchslim.plan import DistanceSpec, PredictorSpec, SlimPlan, build_plan
from patchslim.slim.predictor import hidden_width
from small import make_host, make_images, read_by

WAYS: dict[str, dict[str, Any]] = {
    "matched merge": {"select": "matched", "removed": "merge"},
    "matched drop": {"select": "matched", "removed": "drop"},
    "matched merge, keys": {"select": "matched", "removed": "merge", "distance": "keys"},
    "static merge": {"select": "static", "removed": "merge"},
    "fixed groups": {"select": "static", "removed": "merge", "groups": "fixed"},
    "predicted drop": {"select": "predicted", "removed": "drop"},
    "predicted drop, pool": {"select": "predicted", "removed": "drop", "predictor": "pool"},
    "predicted merge": {"select": "predicted", "removed": "merge"},
    "predicted threshold": {"select": "predicted", "removed": "drop", "mode": "threshold"},
}
ASKED = [("class", 0.5), ("attention pool", 0.5), ("registers", 0.3), ("mean with prefix", 0.9)]  # hosts and shares
IMAGES, PATCHES = 5, 16


def config(way: str, **changes: Any) -> ps.SearchConfig:
    """Settings for 16 patches and a handful of images."""
    return ps.SearchConfig(**({"batch_size": 8, "predictor_epochs": 3} | WAYS[way] | changes))


Found = tuple[SlimPlan, dict[str, Tensor]]


@cache
def searched(kind: str, way: str, **changes: Any) -> Found:
    """The outcome of a search on a small host, the same one for every test that asks."""
    return ps.search(make_host(kind), make_images(IMAGES), config(way, **changes))


def least(info: HostInfo) -> list[int]:
    """As few patches as pairs can leave."""
    return [8, 4, 2, 1 if info.reads_patches else 0]


@cache
def limits(kind: str, way: str) -> tuple[float, float]:
    """The least and the largest MAC ratio, from plans that have them."""
    model, how = make_host(kind), WAYS[way]
    info = ps.inspect(model)
    last = int(info.reads_patches)
    fields: dict[str, Any] = {"select": how["select"], "removed": how["removed"]}
    if how.get("groups"):
        kept = [list(range(count)) for count in least(info)]
        into = [-1, 0 if last else -1, 0, 1, *range(4), *range(8)]
        fewest = build_plan(info, removed="merge", kept=kept, into=into)
    elif how["select"] == "static":
        fewest = build_plan(info, removed="merge", kept=[[0]] * 3 + [[0] * last])
    elif how["select"] == "matched":
        channels = (PATCHES * 24 // 4 - 24) // (24 + PATCHES)  # as many as cost no more than keys
        distance = None if how.get("distance") else DistanceSpec(channels=channels, weights="")
        fewest = build_plan(info, **fields, patches_per_block=least(info), distance=distance)
    else:
        predictor = how.get("predictor", "context")
        spec = PredictorSpec(kind=predictor, hidden=hidden_width(info, predictor), weights="")
        counts = least(info) if how["removed"] == "merge" else [1, 1, 1, last]
        fewest = build_plan(info, **fields, patches_per_block=counts, predictor=spec)
    everything = build_plan(info, kept=[list(range(PATCHES))] * 3 + [list(range(PATCHES * last))])
    return ratio(model, fewest), ratio(model, everything)


def ratio(model: nn.Module, plan: SlimPlan) -> float:
    return ps.count_macs(model, plan) / ps.count_macs(model)


@torch.no_grad()
def readout_error(model: Any, images: Tensor, plan: SlimPlan, weights: Mapping[str, Tensor]) -> float:
    """‖f̂ − f‖² / ‖f‖² by running both models, one image at a time."""
    slim: Any = ps.apply(model, plan, weights)
    errors = []
    for image in images.split(1):
        found, true = (read_by(one, image) for one in (slim, model))
        errors.append(float((found - true).double().square().sum() / true.double().square().sum()))
    return sum(errors) / len(errors)


def target_at(kind: str, way: str, share: float) -> float:
    """A ratio so far from the least one to the largest."""
    low, high = limits(kind, way)
    return low + share * (high - low)
