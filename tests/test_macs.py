"""Closed-form MACs against torch's own counter and against the published numbers."""

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import set_fused_attn
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from patchslim.plan import make_plan
from small import KINDS, make_host, make_images, nested


def counted(model: nn.Module, size: int = 32) -> int:
    """What torch counts per image, from two: two flops are one multiply-accumulate."""
    with FlopCounterMode(display=False) as counter:
        model(make_images(2, size))
    flops: int = counter.get_total_flops()
    assert flops % 4 == 0
    return flops // 4


def unfused(kind: str) -> nn.Module:
    """A small host whose attention torch's counter sees."""
    set_fused_attn(False)
    try:
        return make_host(kind)
    finally:
        set_fused_attn(True)


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
    if info.readout in ("mean", "attention-pool"):
        kept = [sorted({0, *block}) for block in kept]
    for removed in ("drop", "carry"):
        plan = make_plan(info, kept, removed)
        slim = ps.apply(model, plan)
        assert ps.count_macs(slim) == ps.count_macs(model, plan) == counted(slim)


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
