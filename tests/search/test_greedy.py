"""Greedy reconstruction: budgets and tolerances met to a move, one path for all of them."""

import itertools
from functools import cache
from typing import Any

import pytest
import timm
import torch
from torch import nn

import patchslim as ps
import patchslim.hosts.digits_vit  # registers itself with timm
from patchslim.cache import Cache
from patchslim.data import as_source, open_images
from patchslim.events import silent
from patchslim.evidence.features import Features
from patchslim.hosts import open_host
from patchslim.hosts.base import PATCH_READOUTS
from patchslim.macs import steps_macs
from patchslim.methods import Drop, Random, Spread
from patchslim.plan import SlimPlan, static_plan, static_steps
from patchslim.search.cost import Budget, MacCost
from patchslim.search.greedy import Greedy
from searches import assert_same, ratio, readout_error, slim_by
from small import make_host, make_images

IMAGES, PATCHES = 5, 16
SHARES = (0.05, 0.6, 0.95)  # from the least ratio to the largest


@cache
def searched(kind: str, **asked: Any) -> Any:
    """The slim model of a small host, the same one for every test that asks."""
    slim = slim_by(make_host(kind), make_images(IMAGES), Drop(), batch_size=4, **asked)
    assert slim.plan.method == "drop"
    return slim


def macs(info: ps.HostInfo, counts: list[int]) -> int:
    return steps_macs(info, static_steps(info, counts, "slice"))


@cache
def limits(kind: str) -> tuple[float, float]:
    """The least and the largest ratio."""
    info = ps.inspect(make_host(kind))
    last = int(info.reads_patches)
    whole = ps.count_macs(make_host(kind))
    return macs(info, [last] * 4) / whole, macs(info, [PATCHES] * 3 + [PATCHES * last]) / whole


def target_at(kind: str, share: float) -> float:
    low, high = limits(kind)
    return low + share * (high - low)


@cache
def whole_path(kind: str) -> Greedy:
    """The path, gone to its end."""
    host = open_host(make_host(kind).requires_grad_(False))
    features = Features(host, as_source(make_images(IMAGES)), 4, 2**30)
    path = Greedy(host, features, Cache(), silent, Budget(MacCost(Drop().draft(host.info)), None), seed=0)
    path.search(1e9)
    return path


def moves_of(plan: SlimPlan) -> int:
    """How many moves lead to a plan: one per patch and block that is no longer computed (and could be)."""
    blocks = plan.host.depth if plan.host.readout in PATCH_READOUTS else plan.host.depth - 1
    return blocks * PATCHES - sum(plan.counts[:blocks])


def test_the_ratio_is_met_from_below_to_one_move_on_one_path_of_nested_plans(kind: str) -> None:
    model, plans = make_host(kind), list[SlimPlan]()
    info, path = ps.inspect(model), whole_path(kind)
    everything = macs(info, [PATCHES] * 4)
    unit = max(everything - macs(info, [PATCHES - (layer >= block) for layer in range(4)]) for block in (0, 3))
    for share in SHARES:
        target, plan = target_at(kind, share), searched(kind, macs=target_at(kind, share)).plan
        assert target - 2 * unit / ps.count_macs(model) < ratio(model, plan) <= target
        assert ratio(model, path.plan(moves_of(plan) - 1)) > target
        assert plan.kept == path.plan(moves_of(plan)).kept
        plans.append(plan)
    for small, large in itertools.pairwise(plans):
        assert all(set(few) <= set(many) for few, many in zip(small.kept, large.kept, strict=True))
        assert sum(small.counts) < sum(large.counts)


def test_the_path_takes_one_patch_from_one_block_at_a_time_to_the_end(kind: str) -> None:
    path = whole_path(kind)
    reads = path.info.reads_patches
    assert len(path.moves) == (4 * (PATCHES - 1) if reads else 3 * PATCHES)
    plans = [path.plan(moves) for moves in range(len(path.moves) + 1)]
    assert plans[0].counts == ((PATCHES,) * 4 if reads else (*[PATCHES] * 3, 0))
    assert plans[-1].counts == ((1,) * 4 if reads else (0,) * 4)
    for more, fewer in itertools.pairwise(plans):
        gone = [set(a) - set(b) for a, b in zip(more.kept, fewer.kept, strict=True)]
        assert sum(len(patches) for patches in gone) == 1
        assert all(set(b) <= set(a) for a, b in zip(more.kept, fewer.kept, strict=True))
    found = [path.macs(moves) for moves in range(len(plans))]
    assert found == [ps.count_macs(make_host(kind), plan) for plan in plans]
    assert found == sorted(set(found), reverse=True)


def test_the_least_and_the_most_are_reached_and_less_is_refused_with_what_can_be(kind: str) -> None:
    model, images = make_host(kind), make_images(IMAGES)
    low, high = limits(kind)
    slim = searched(kind, macs=low + 1e-9)
    least = int(slim.plan.host.readout in PATCH_READOUTS)
    assert slim.plan.counts == (least,) * 4
    assert bool(torch.isfinite(slim(images)).all())
    with pytest.raises(ps.BudgetError, match=f"by drop; anything from {low:.3f} to {high:.3f} can"):
        slim_by(model, images, Drop(), macs=low - 1e-3)
    generous = searched(kind, macs=0.9999)
    if least:
        assert sum(generous.plan.counts) == 4 * PATCHES - 1
    else:
        assert generous.plan.counts == (PATCHES, PATCHES, PATCHES, 0)
        assert readout_error(model, images, generous) < 1e-10


def test_the_error_is_what_running_both_models_gives_and_less_than_that_of_other_patches(kind: str) -> None:
    """Same counts per block, patches in random order: orders drawn at random do worse on average."""
    model, images = make_host(kind), make_images(IMAGES)
    slim, others = searched(kind, macs=target_at(kind, 0.6)), []
    error = readout_error(model, images, slim)
    assert slim.plan.provenance["errors"] == {"readout": pytest.approx(error, rel=1e-3)}
    for seed in range(6):
        order = torch.randperm(PATCHES, generator=torch.Generator().manual_seed(seed)).tolist()
        shuffled = static_plan(ps.inspect(model), [order[:count] for count in slim.plan.counts])
        others.append(readout_error(model, images, ps.apply(model, shuffled)))
    assert error < sum(others) / len(others)


@pytest.mark.parametrize("kind", ["class", "registers", "mean", "attention pool"])
def test_the_tolerance_holds_and_one_more_move_breaks_it(kind: str) -> None:
    model, images, found = make_host(kind), make_images(IMAGES), []
    for tolerance in (0.002, 0.02, 0.1):
        slim = searched(kind, tolerance=tolerance)
        assert slim.plan.provenance["tolerance"] == tolerance
        assert readout_error(model, images, slim) <= 1.0001 * tolerance
        further = ps.apply(model, whole_path(kind).plan(moves_of(slim.plan) + 1))
        assert readout_error(model, images, further) > 0.9999 * tolerance
        found.append(moves_of(slim.plan))
    assert found[0] < found[1] < found[2]


def test_no_tolerance_keeps_everything_any_error_removes_all_and_none_means_the_papers() -> None:
    for kind in ("class", "mean"):
        reads = int(ps.inspect(make_host(kind)).reads_patches)
        assert searched(kind, tolerance=0.0).plan.counts == (PATCHES, PATCHES, PATCHES, PATCHES * reads)
        assert searched(kind, tolerance=1e9).plan.counts == (reads,) * 4
    assert searched("class").plan.provenance["tolerance"] == 0.01
    assert searched("class").plan.kept == searched("class", tolerance=0.01).plan.kept


def test_a_host_of_one_block_has_nothing_to_remove_but_what_nobody_reads() -> None:
    for asked in ({"macs": 0.9}, {"tolerance": 0.01}):
        assert slim_by(make_host(depth=1), make_images(2), Drop(), **asked).plan.counts == (0,)


@pytest.mark.parametrize("kind", ["class", "mean with prefix"])
def test_the_same_again_whatever_else_drew_numbers_and_however_little_memory_there_is(kind: str) -> None:
    asked = {"macs": target_at(kind, 0.4), "batch_size": 4}
    torch.manual_seed(99)
    again = slim_by(make_host(kind), make_images(IMAGES), Drop(), **asked, memory_gib=0.0)
    assert_same(again, searched(kind, macs=asked["macs"]))


def test_broken_weights_are_told() -> None:
    model: Any = make_host()
    with torch.no_grad():
        model.blocks[2].mlp.fc1.weight.fill_(torch.nan)
    for asked in ({"macs": 0.6}, {"tolerance": 0.02}):
        with pytest.raises(ps.PatchslimError, match="not a finite number"):
            slim_by(model, make_images(3), Drop(), **asked)


def test_it_beats_random_and_even_orders_on_trained_digits() -> None:
    model: nn.Module = timm.create_model("digits_vit", pretrained=True).eval()
    source, found = open_images("digits:train", model=model, limit=48), dict[str, float]()
    images = torch.cat([batch for batch, _ in source.batches(48)])
    for method in (Drop(), Random(step=8), Spread(step=8)):
        slim = slim_by(model, images, method, macs=0.6, batch_size=48)
        assert 0.59 < ratio(model, slim.plan) <= 0.6
        found[method.name] = readout_error(model, images, slim)
    assert found["drop"] < 0.5 * min(found["random"], found["spread"])
