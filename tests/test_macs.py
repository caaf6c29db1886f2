"""Closed-form MACs against torch's own counter and against the published numbers."""

from typing import Any

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from flops import counted, unfused
from patchslim.macs import MADE, host_macs, plan_macs, steps_macs
from patchslim.plan import make_plan
from patchslim.steps.keep import Keep
from patchslim.steps.selector import hidden_width, selector_macs
from patchslim.steps.slice import Slice
from small import make_host
from step_plans import STEPS, alone, mixes

HOSTS = {kind: unfused(kind) for kind in ("class", "mean with prefix")}


def on_meta(name: str) -> torch.nn.Module:
    """A model of timm's without any numbers."""
    with torch.device("meta"):
        model: torch.nn.Module = timm.create_model(f"{name}_patch16_224")
    return model


def test_hosts_equal_the_counter(kind: str) -> None:
    model = unfused(kind)
    assert ps.count_macs(model) == counted(model) == host_macs(ps.inspect(model))
    assert ps.count_macs(model, ps.full_plan(model)) == counted(model)


def test_a_pool_that_reads_prefix_tokens_too_equals_the_counter() -> None:
    model = unfused("attention pool", reg_tokens=2, pool_include_prefix=True)
    assert ps.count_macs(model) == counted(model)


@pytest.mark.parametrize("name", [name for name in STEPS if "threshold" not in name])
def test_each_step_equals_the_counter(kind: str, name: str) -> None:
    """What images that keep different numbers take is in tests/steps/test_step_threshold.py."""
    model = unfused(kind)
    for n in (9, 16):
        plan, weights = alone(model, STEPS[name](n) if name != "tome" else STEPS[name](n - 8))
        if name == "evit" and not ps.inspect(model).reads_class:
            continue
        slim = ps.apply(model, plan, weights)
        assert ps.count_macs(slim) == ps.count_macs(model, plan) == counted(slim)


@pytest.mark.parametrize("kind", HOSTS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_mix_of_steps_equals_the_counter(kind: str, data: st.DataObject) -> None:
    model = HOSTS[kind]
    plan, weights = data.draw(mixes(model, [name for name in STEPS if "threshold" not in name]))
    slim = ps.apply(model, plan, weights)
    assert ps.count_macs(slim) == ps.count_macs(model, plan) == counted(slim)


def test_an_average_over_images_is_what_the_plan_says() -> None:
    info = ps.inspect(make_host())
    plan = make_plan(info, [Keep()] * 3 + [Slice(n=0)])
    assert plan_macs(info, plan) == steps_macs(info, plan.steps)
    assert plan_macs(info, plan.with_(average_macs=12345)) == 12345
    assert steps_macs(info, plan.steps, [16, 16, 16, 0]) == steps_macs(info, plan.steps)


def test_a_model_without_a_plan_takes_what_it_was_made_to_take() -> None:
    model = make_host()
    setattr(model, MADE, 4321)
    assert ps.count_macs(model) == 4321
    assert ps.count_macs(model, ps.full_plan(model)) == ps.count_macs(make_host())


@pytest.mark.parametrize("selector", ["context", "mlp", "pool"])
def test_the_selector_costs_at_most_a_hundredth_of_the_host(selector: Any) -> None:
    for name in ("deit_tiny", "deit_small", "deit_base"):
        info = ps.inspect(on_meta(name))
        everywhere = info.depth * selector_macs(info, selector, hidden_width(info, selector), info.patches)
        assert everywhere <= 0.01 * host_macs(info)


@pytest.mark.parametrize(("name", "gmacs"), [("deit_tiny", 1.2537), ("deit_small", 4.5989), ("deit_base", 17.5638)])
def test_published_numbers(name: str, gmacs: float) -> None:
    assert round(ps.count_macs(on_meta(name)) / 1e9, 4) == gmacs


def test_computing_only_the_readout_in_the_last_block_saves_7_percent_of_deit_small() -> None:
    model = on_meta("deit_small")
    plan = make_plan(ps.inspect(model), [Keep()] * 11 + [Slice(n=0)])
    assert round(1 - ps.count_macs(model, plan) / ps.count_macs(model), 3) == 0.069
