"""Searches that measure: budgets met, errors as they are, the same again, nothing left behind."""

import copy
from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.macs import host_macs, steps_macs
from patchslim.methods import PS
from patchslim.plan import make_plan, static_steps
from patchslim.steps.predict import Predict
from patchslim.steps.selector import hidden_width
from searches import (
    ASKED,
    IMAGES,
    PATCHES,
    STEPS,
    WAYS,
    assert_same,
    limits,
    own_weights,
    ratio,
    readout_error,
    searched,
    slim_by,
    target_at,
)
from small import make_host, make_images, steps_for

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "share"), ASKED)
def test_the_ratio_is_met_from_below_to_a_patch_per_block_and_the_error_is_true(
    kind: str, way: str, share: float
) -> None:
    model, target = make_host(kind), target_at(kind, way, share)
    info, slim = ps.inspect(model), searched(kind, way, macs=target)
    full, less = (steps_macs(info, static_steps(info, [count] * 4, "slice")) for count in (PATCHES, PATCHES - 1))
    assert target - 1.1 * (full - less) / host_macs(info) < ratio(model, slim.plan) <= target
    own = "threshold" if way == "threshold" else STEPS[way](9, 1).kind
    assert {own} <= {step.kind for step in slim.plan.steps} <= {own, "keep", "slice"}
    error = slim.plan.provenance["errors"]["readout"]
    assert readout_error(model, make_images(IMAGES), slim) == pytest.approx(error, rel=1e-3)
    assert error > 1e-4


@pytest.mark.parametrize(("kind", "way"), [*(("class", way) for way in WAYS), ("mean", "merge"), ("mean", "threshold")])
def test_the_least_ratio_is_reached_and_less_is_refused_with_what_can_be(kind: str, way: str) -> None:
    model = make_host(kind)
    low, high = limits(kind, way)
    assert ratio(model, searched(kind, way, macs=low + 1e-9).plan) <= low + 1e-9
    with pytest.raises(ps.BudgetError, match=f"{low:.3f} to {high:.3f}"):
        slim_by(model, make_images(IMAGES), way, macs=low - 1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_a_generous_ratio_keeps_everything_that_is_read(way: str) -> None:
    slim = searched("class", way, macs=0.99)
    assert slim.plan.counts == (16, 16, 16, 0)
    assert not own_weights(slim)
    assert readout_error(make_host(), make_images(IMAGES), slim) < 1e-10


def test_the_ratio_is_met_where_late_removals_cost_nothing() -> None:
    """The last block reads no patch, so it is free to remove in block 3; but that alone does not reach the ratio."""
    model: Any = make_host(patch_size=4, seed=1)
    with torch.no_grad():
        model.blocks[3].attn.proj.weight.zero_()
    info = ps.inspect(model)
    alone = ratio(model, make_plan(info, WAYS["merge"].draft(info).steps((64, 64, 32, 0), ())))
    for less in (0.005, 0.01, 0.015, 0.02, 0.025):
        assert ratio(model, slim_by(model, make_images(3), "merge", macs=alone - less).plan) <= alone - less


@pytest.mark.parametrize("way", [*WAYS, "drop", PS(step=4, tune_epochs=1)])
def test_the_model_is_left_as_it_was(way: Any) -> None:
    model = make_host().train()
    before = copy.deepcopy(model.state_dict())
    parts, random = [(name, id(module)) for name, module in model.named_modules()], torch.random.get_rng_state()
    slim_by(model, make_images(2), way, macs=0.8)
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [(name, id(module)) for name, module in model.named_modules()] == parts
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_again_whatever_else_drew_numbers_and_however_little_memory_there_is(way: str) -> None:
    """Without memory nothing is cached, features are computed over and over and no prefix is remembered."""
    asked: dict[str, Any] = {"macs": target_at("class", way, 0.5), "batch_size": 3}
    first = searched("class", way, **asked)
    torch.manual_seed(99)
    assert_same(first, slim_by(make_host(), make_images(IMAGES), way, **asked, memory_gib=0.0))
    owners = {layer for layer, step in enumerate(first.plan.steps, start=1) if step.kind not in ("keep", "slice")}
    assert {int(name.split(".")[1]) + 1 for name in own_weights(first)} == owners


@pytest.mark.parametrize("way", ["merge", "cover", "predict drop"])
@pytest.mark.parametrize("kind", ["class", "mean with prefix"])
def test_the_tolerance_holds_and_a_larger_one_keeps_no_more(kind: str, way: str) -> None:
    model, images, found = make_host(kind), make_images(IMAGES), []
    for tolerance in (0.01, 0.04, 0.15):
        slim = searched(kind, way, tolerance=tolerance)
        assert slim.plan.provenance["tolerance"] == tolerance
        if way != "predict drop":  # there, G learns again on the network that was found
            assert readout_error(model, images, slim) <= 1.0001 * tolerance
        found.append(ps.count_macs(slim))
    assert found[0] > found[1] > found[2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["class", "mean"])
def test_no_tolerance_keeps_everything_and_the_hosts_output(kind: str, way: str) -> None:
    model = make_host(kind)
    slim = searched(kind, way, tolerance=0.0)
    assert slim.plan.counts == (16, 16, 16, 16 if ps.inspect(model).reads_patches else 0)
    assert readout_error(model, make_images(IMAGES), slim) < 1e-10
    assert ratio(model, slim.plan) == pytest.approx(limits(kind, way)[1])


def test_nothing_asked_for_means_the_papers_tolerance() -> None:
    slim = searched("class", "merge")
    assert slim.plan.provenance["tolerance"] == 0.01
    assert slim.plan.counts == searched("class", "merge", tolerance=0.01).plan.counts


@pytest.mark.parametrize("asked", [{"macs": 0.95}, {"tolerance": 0.01}])
@pytest.mark.parametrize("way", WAYS)
def test_a_host_of_one_block_has_nothing_to_remove_but_what_nobody_reads(way: str, asked: dict[str, Any]) -> None:
    model, images = make_host(depth=1), make_images(2)
    slim = slim_by(model, images, way, **asked)
    assert slim.plan.counts == (0,)
    assert readout_error(model, images, slim) < 1e-10


@pytest.mark.parametrize("way", WAYS)
def test_broken_weights_are_told(way: str) -> None:
    model: Any = make_host()
    with torch.no_grad():
        model.blocks[2].mlp.fc1.weight.fill_(torch.nan)
    with pytest.raises(ps.PatchslimError, match="not a finite number"):
        slim_by(model, make_images(3), way, macs=0.6)


def test_the_dearer_selector_is_counted_where_ratios_are_refused() -> None:
    """64 patches of width 24: the pool's G costs more than the MLP's."""
    model = make_host(patch_size=4)
    info, found = ps.inspect(model), dict[str, float]()
    for way, selector in (("predict drop", "context"), ("dps", "pool")):
        step = Predict(n=1, selector=selector, hidden=hidden_width(info, selector))  # type: ignore[arg-type]
        found[way] = ratio(model, make_plan(info, steps_for(model, lambda n, layer, own=step: own, [1, 1, 1, 0])))
    assert found["predict drop"] < found["dps"]
    between = sum(found.values()) / 2
    assert slim_by(model, make_images(2), "predict drop", macs=between).plan.counts[0] > 0
    with pytest.raises(ps.BudgetError, match=rf"can't be reached on .* by dps; anything from {found['dps']:.3f}"):
        slim_by(model, make_images(2), "dps", macs=between)
