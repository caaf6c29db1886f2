"""Searches that measure, of every kind: budgets met, errors as they are, nothing left behind, resumed to the byte."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from patchslim.macs import macs_of_counts
from patchslim.plan import PredictorSpec, build_plan
from patchslim.search import measured, predict
from patchslim.slim.predictor import hidden_width
from power import Interrupted, interrupt_after
from searches import (
    ASKED,
    IMAGES,
    PATCHES,
    WAYS,
    config,
    limits,
    ratio,
    readout_error,
    searched,
    target_at,
)
from small import make_host, make_images

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "share"), ASKED)
def test_the_ratio_is_met_from_below_to_a_patch_per_block(kind: str, way: str, share: float) -> None:
    model, target = make_host(kind), target_at(kind, way, share)
    plan, _ = searched(kind, way, target_macs=target)
    full, less = (macs_of_counts(ps.inspect(model), [count] * 4) for count in (PATCHES, PATCHES - 1))
    assert target - 1.1 * (full - less) / ps.count_macs(model) < ratio(model, plan) <= target
    assert plan.provenance["macs_ratio"] == ratio(model, plan)
    assert plan.provenance["macs"] == ps.count_macs(model, plan)
    assert (plan.select, plan.removed) == (WAYS[way]["select"], WAYS[way]["removed"])
    assert plan.mode == WAYS[way].get("mode", "top-k")


@pytest.mark.parametrize(
    ("kind", "way"),
    [*(("class", way) for way in WAYS), ("mean", "matched drop"), ("mean", "predicted threshold")],
)
def test_the_least_ratio_is_reached_and_less_is_refused_with_what_can_be(kind: str, way: str) -> None:
    model = make_host(kind)
    low, high = limits(kind, way)
    target = low + 1e-9
    plan, _ = searched(kind, way, target_macs=target)
    assert ratio(model, plan) <= target
    with pytest.raises(ps.BudgetError, match=f"{low:.3f} to {high:.3f}"):
        ps.search(model, make_images(IMAGES), config(way, target_macs=low - 1e-3))


@pytest.mark.parametrize("way", WAYS)
def test_a_generous_ratio_keeps_everything_that_is_read(way: str) -> None:
    plan, weights = searched("class", way, target_macs=0.99)
    assert plan.counts == (16, 16, 16, 0)
    assert not weights
    assert readout_error(make_host(), make_images(IMAGES), plan, weights) < 1e-10


@pytest.mark.parametrize("way", ["matched merge", "matched drop", "static merge"])
def test_the_ratio_is_met_where_late_removals_cost_nothing(way: str) -> None:
    """The last block reads no patch, so it is free to remove in block 3; but that alone does not reach the ratio."""
    model: Any = make_host(patch_size=4)
    with torch.no_grad():
        model.blocks[3].attn.proj.weight.zero_()
    alone = macs_of_counts(ps.inspect(model), (64, 64, 32, 0), "drop", select="matched") / ps.count_macs(model)
    for target in (alone - 0.01, alone - 0.02):
        plan, _ = ps.search(model, make_images(3), config(way, target_macs=target))
        assert ratio(model, plan) <= target


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "share"), ASKED)
def test_the_error_is_what_running_both_models_gives(kind: str, way: str, share: float) -> None:
    model, images = make_host(kind), make_images(IMAGES)
    plan, weights = searched(kind, way, target_macs=target_at(kind, way, share))
    assert readout_error(model, images, plan, weights) == pytest.approx(plan.provenance["errors"]["readout"], rel=1e-3)
    assert plan.provenance["errors"]["readout"] > 1e-4
    assert plan.provenance["images"] == IMAGES
    assert plan.provenance["tolerance"] is None


@pytest.mark.parametrize("way", WAYS)
def test_the_model_is_left_as_it_was(way: str) -> None:
    model = make_host().train()
    before = copy.deepcopy(model.state_dict())
    names = [name for name, _ in model.named_modules()]
    rng = torch.random.get_rng_state()
    ps.search(model, make_images(2), config(way, target_macs=0.8, predictor_epochs=1))
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [name for name, _ in model.named_modules()] == names
    assert torch.equal(torch.random.get_rng_state(), rng)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_search_gives_the_same_bytes(way: str) -> None:
    target = target_at("class", way, 0.5)
    first, weights = searched("class", way, target_macs=target)
    torch.manual_seed(99)
    again, others = ps.search(make_host(), make_images(IMAGES), config(way, target_macs=target))
    assert again.to_json() == first.to_json()
    assert same(weights, others)


def same(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize("way", WAYS)
def test_plans_are_read_back_and_make_the_same_model(way: str, tmp_path: Path) -> None:
    plan, weights = searched("class", way, target_macs=target_at("class", way, 0.5))
    plan.save(tmp_path / "plan.json")
    assert ps.SlimPlan.load(tmp_path / "plan.json") == plan
    assert bool(weights) == bool(plan.predictor or plan.distance)
    assert {int(name.split(".")[1]) + 1 for name in weights} == (set(plan.choosing) if weights else set())


@pytest.mark.parametrize("way", ["static merge", "predicted threshold"])
def test_a_small_cache_finds_the_same_in_batches_of_different_sizes(way: str) -> None:
    asked = {"target_macs": target_at("class", way, 0.5), "batch_size": 3}
    plan, weights = searched("class", way, **asked)
    again, others = searched("class", way, **asked, cache_gib=0.0)
    assert again.model_copy(update={"provenance": {}}) == plan.model_copy(update={"provenance": {}})
    assert same(weights, others)
    assert again.provenance["errors"] == plan.provenance["errors"]
    error = readout_error(make_host(), make_images(IMAGES), plan, weights)
    assert error == pytest.approx(plan.provenance["errors"]["readout"], rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "way", "asked"),
    [
        *(("class", way, {"target_macs": 0.75}) for way in WAYS if way != "predicted merge"),
        ("class", "matched merge", {"tolerance": 0.02}),
        ("mean", "predicted merge", {"tolerance": 0.1}),
    ],
)
def test_interrupted_anywhere_and_resumed_gives_the_same_bytes(
    kind: str, way: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    model, images = make_host(kind), make_images(3)
    chosen = config(way, **asked, predictor_epochs=1)
    heard: list[Mapping[str, Any]] = []
    expected, weights = ps.search(model, images, chosen, listen=heard.append)
    assert len(heard) > 10
    for cut in (1, len(heard) // 2, len(heard) - 1):
        folder = tmp_path / str(cut)
        with pytest.raises(Interrupted):
            ps.search(model, images, chosen, checkpoint=folder, listen=interrupt_after(cut))
        plan, resumed = ps.search(model, images, chosen, checkpoint=folder)
        assert plan.to_json() == expected.to_json()
        assert same(resumed, weights)


@pytest.mark.parametrize("way", WAYS)
def test_what_was_found_out_is_not_found_out_again(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, chosen = make_host(), make_images(3), config(way, target_macs=0.75, predictor_epochs=1)
    expected, weights = ps.search(model, images, chosen, checkpoint=tmp_path)

    def refuse(*args: Any) -> None:
        raise AssertionError("measured or trained again")

    monkeypatch.setattr(measured, "measure", refuse)  # candidates'; the final error of predicted plans is another name
    monkeypatch.setattr(predict.Trainer, "_train", refuse)
    plan, others = ps.search(model, images, chosen, checkpoint=tmp_path)
    assert plan.to_json() == expected.to_json()
    assert same(weights, others)


TOLERANCES = (0.01, 0.04, 0.15)


@pytest.mark.parametrize("way", ["matched merge", "matched drop", "static merge"])
@pytest.mark.parametrize("kind", ["class", "mean with prefix"])
def test_the_tolerance_holds_and_a_larger_one_keeps_no_more(kind: str, way: str) -> None:
    model, images, found = make_host(kind), make_images(IMAGES), []
    for tolerance in TOLERANCES:
        plan, weights = searched(kind, way, tolerance=tolerance)
        assert plan.provenance["tolerance"] == tolerance
        assert readout_error(model, images, plan, weights) <= 1.0001 * tolerance
        assert plan.provenance["errors"]["readout"] <= tolerance
        found.append(ps.count_macs(model, plan))
    assert found == sorted(found, reverse=True)
    assert found[0] > found[1] > found[2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["class", "mean"])
def test_no_tolerance_keeps_everything_and_the_hosts_output(kind: str, way: str) -> None:
    model, images = make_host(kind), make_images(IMAGES)
    plan, weights = searched(kind, way, tolerance=0.0, predictor_epochs=1)
    assert plan.counts == (16, 16, 16, 16 if ps.inspect(model).reads_patches else 0)
    assert readout_error(model, images, plan, weights) < 1e-10
    assert ratio(model, plan) == pytest.approx(limits(kind, way)[1])


def test_nothing_asked_for_means_the_papers_tolerance() -> None:
    plan, _ = searched("class", "matched merge")
    assert plan.provenance["tolerance"] == 0.01
    assert plan.counts == searched("class", "matched merge", tolerance=0.01)[0].counts


@pytest.mark.parametrize("asked", [{"target_macs": 0.95}, {"tolerance": 0.01}])
@pytest.mark.parametrize("way", WAYS)
def test_a_host_of_one_block_has_nothing_to_remove_but_what_nobody_reads(way: str, asked: dict[str, Any]) -> None:
    model, images = make_host(depth=1), make_images(2)
    plan, weights = ps.search(model, images, config(way, **asked))
    assert plan.counts == (0,)
    assert readout_error(model, images, plan, weights) < 1e-10


@pytest.mark.parametrize("way", WAYS)
def test_broken_weights_are_told(way: str) -> None:
    model: Any = make_host()
    with torch.no_grad():
        model.blocks[2].mlp.fc1.weight.fill_(torch.nan)
    with pytest.raises(ps.PatchslimError, match="not a finite number"):
        ps.search(model, make_images(3), config(way, target_macs=0.6, predictor_epochs=1))


def test_the_dearer_predictor_is_counted_where_ratios_are_refused() -> None:
    """64 patches of width 24: the pool's G costs more than the MLP's."""
    model = make_host(patch_size=4)
    info = ps.inspect(model)
    found = {}
    kinds: tuple[Any, ...] = ("mlp", "pool")
    for kind in kinds:
        spec = PredictorSpec(kind=kind, hidden=hidden_width(info, kind), weights="")
        plan = build_plan(info, select="predicted", patches_per_block=[1, 1, 1, 0], predictor=spec)
        found[kind] = ratio(model, plan)
    assert found["mlp"] < found["pool"]
    between = (found["mlp"] + found["pool"]) / 2
    with pytest.raises(ps.BudgetError, match="can't be reached"):
        ps.search(model, make_images(2), config("predicted drop, pool", target_macs=between))
