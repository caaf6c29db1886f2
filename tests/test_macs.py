"""Closed-form MACs against torch's own counter and against the published numbers."""

from typing import Any

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from flops import counted, unfused
from patchslim.macs import host_macs, predictor_macs
from patchslim.plan import PredictorSpec, make_plan
from patchslim.slim.predictor import hidden_width
from small import KINDS, make_images, merge_plan, nested, per_image_plan


def test_hosts_equal_the_counter(kind: str) -> None:
    model = unfused(kind)
    assert ps.count_macs(model) == counted(model)
    assert ps.count_macs(model, ps.full_plan(model)) == counted(model)


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_slim_models_equal_the_counter(kind: str, data: st.DataObject) -> None:
    model = unfused(kind)
    info = ps.inspect(model)
    kept = data.draw(nested())
    if info.reads_patches:
        kept = [sorted({0, *block}) for block in kept]
    for removed in ("drop", "carry"):
        plan = make_plan(info, kept, removed)
        slim = ps.apply(model, plan)
        assert ps.count_macs(slim) == ps.count_macs(model, plan) == counted(slim)


WAYS: list[dict[str, Any]] = [
    {"select": "matched", "removed": "merge"},
    {"select": "matched", "removed": "drop"},
    {"select": "matched", "removed": "merge", "drops": [1, 3]},
    {"select": "predicted", "removed": "drop"},
    {"select": "predicted", "removed": "drop", "kind": "pool"},
    {"select": "predicted", "removed": "drop", "kind": "context"},
    {"select": "predicted", "removed": "merge", "drops": [2]},
    {"select": "predicted", "removed": "merge", "kind": "context"},
    {"select": "predicted", "removed": "merge", "kind": "context", "drops": [1, 3]},
    {"select": "predicted", "removed": "merge", "kind": "pool"},
]


@pytest.mark.parametrize("way", WAYS)
def test_choosing_and_merging_is_counted(kind: str, way: dict[str, Any]) -> None:
    model = unfused(kind)
    for counts in ([13, 9, 6, 3], [16, 8, 8, 4], [15, 15, 7, 7]):
        plan, weights = per_image_plan(model, counts=counts, **way)
        slim = ps.apply(model, plan, weights)
        assert ps.count_macs(slim) == ps.count_macs(model, plan) == counted(slim)


@pytest.mark.filterwarnings("ignore:There is no packed attention")
@pytest.mark.parametrize("predictor", ["context", "mlp", "pool"])
def test_what_a_threshold_keeps_is_counted(kind: str, predictor: Any) -> None:
    model = unfused(kind)
    plan, weights = per_image_plan(model, "predicted", kind=predictor, thresholds=[-3.0, -1.0, 0.0, 0.0])
    slim = ps.apply(model, plan, weights)
    for image in make_images(3).split(1):  # alone, so that G runs on no filling
        with FlopCounterMode(display=False) as counter:
            slim(image)
        assert 2 * int(slim.image_macs(image)) == counter.get_total_flops()


def test_static_merge_is_counted(kind: str) -> None:
    model = unfused(kind)
    slim = ps.apply(model, merge_plan(model))
    assert ps.count_macs(slim) == counted(slim)


@pytest.mark.parametrize("predictor", ["context", "mlp", "pool"])
def test_the_predictor_costs_at_most_a_hundredth_of_the_host(predictor: Any) -> None:
    for name in ("deit_tiny", "deit_small", "deit_base"):
        with torch.device("meta"):
            info = ps.inspect(timm.create_model(f"{name}_patch16_224"))
        spec = PredictorSpec(kind=predictor, hidden=hidden_width(info, predictor), weights="")
        everywhere = info.depth * predictor_macs(info, spec, info.patches)
        assert everywhere <= 0.01 * host_macs(info)


def test_published_numbers() -> None:
    expected = {"deit_tiny": 1.2537, "deit_small": 4.5989, "deit_base": 17.5638}
    for name, gmacs in expected.items():
        with torch.device("meta"):
            model = timm.create_model(f"{name}_patch16_224")
        assert round(ps.count_macs(model) / 1e9, 4) == gmacs


def test_computing_only_the_readout_in_the_last_block_saves_7_percent_of_deit_small() -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_small_patch16_224")
    everything = list(range(196))
    plan = make_plan(ps.inspect(model), [everything] * 11 + [[]])
    assert round(1 - ps.count_macs(model, plan) / ps.count_macs(model), 3) == 0.069
