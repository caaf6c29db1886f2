"""Greedy reconstruction: budgets and tolerances met to a move, one path for all of them, resumed to the byte."""

import copy
import itertools
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.data import as_source, open_images
from patchslim.hosts import open_host
from patchslim.hosts.base import PATCH_READOUTS
from patchslim.macs import macs_of_counts
from patchslim.plan import SlimPlan, make_plan
from patchslim.search import greedy
from patchslim.search.budget import reachable
from patchslim.search.features import Features
from patchslim.search.greedy import Greedy
from patchslim.search.ledger import Ledger
from power import Interrupted, interrupt_after
from small import make_host, make_images, read_by

IMAGES, PATCHES = 5, 16
SHARES = (0.05, 0.6, 0.95)  # from the least ratio to the largest


def config(**settings: Any) -> ps.SearchConfig:
    usual: dict[str, Any] = {"batch_size": 4, "removed": "drop"}
    return ps.SearchConfig(**(usual | settings))


@cache
def searched(kind: str, **settings: Any) -> SlimPlan:
    """The outcome of a search on a small host, the same one for every test that asks."""
    plan, weights = ps.search(make_host(kind), make_images(IMAGES), config(**settings))
    assert not weights  # no block is tuned
    return plan


def target_at(kind: str, share: float) -> float:
    low, high = reachable(ps.inspect(make_host(kind)), ps.SearchConfig(removed="drop"))
    return low + share * (high - low)


def ratio(model: nn.Module, plan: SlimPlan) -> float:
    return ps.count_macs(model, plan) / ps.count_macs(model)


@torch.no_grad()
def readout_error(model: Any, images: Tensor, plan: SlimPlan) -> float:
    """‖f̂ − f‖² / ‖f‖² by running both models, one image at a time."""
    slim: Any = ps.apply(model, plan)
    errors = []
    for image in images.split(1):
        found, true = (read_by(one, image) for one in (slim, model))
        errors.append(float((found - true).double().square().sum() / true.double().square().sum()))
    return sum(errors) / len(errors)


def path_of(model: nn.Module, images: Tensor, **settings: Any) -> Greedy:
    """The path of a search, gone to its end."""
    host = open_host(copy.deepcopy(model).requires_grad_(False))
    chosen = config(**settings)
    features = Features(host, as_source(images), chosen.batch_size, 2**30)
    path = Greedy(host, features, chosen, Ledger(), lambda event: None)
    path.search(1e9)
    return path


@cache
def whole_path(kind: str) -> Greedy:
    return path_of(make_host(kind), make_images(IMAGES))


def moves_of(plan: SlimPlan) -> int:
    """How many moves lead to a plan: one per patch and block that is no longer computed (and could be)."""
    blocks = plan.host.depth if plan.host.readout in PATCH_READOUTS else plan.host.depth - 1
    return blocks * PATCHES - sum(plan.counts[:blocks])


def test_the_ratio_is_met_from_below_to_one_move(kind: str) -> None:
    model, info = make_host(kind), ps.inspect(make_host(kind))
    for share in SHARES:
        target = target_at(kind, share)
        plan = searched(kind, target_macs=target)
        assert ratio(model, plan) <= target
        before = whole_path(kind).plan(moves_of(plan) - 1)
        assert ratio(model, before) > target
        units = [macs_of_counts(info, [PATCHES] * 4) - macs_of_counts(info, [*[PATCHES] * 3, PATCHES - 1])]
        units.append(macs_of_counts(info, [PATCHES] * 4) - macs_of_counts(info, [PATCHES - 1, *[PATCHES] * 3]))
        assert target - ratio(model, plan) < 2 * max(units) / ps.count_macs(model)


def test_all_budgets_lie_on_one_path_and_their_plans_are_nested(kind: str) -> None:
    plans = [searched(kind, target_macs=target_at(kind, share)) for share in SHARES]
    for plan in plans:
        assert plan.kept == whole_path(kind).plan(moves_of(plan)).kept
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
    macs = [path.macs(moves) for moves in range(len(plans))]
    assert macs == [ps.count_macs(make_host(kind), plan) for plan in plans]
    assert macs == sorted(set(macs), reverse=True)


def test_every_readout_keeps_what_it_needs(kind: str) -> None:
    model = make_host(kind)
    plan = searched(kind, target_macs=target_at(kind, 0.0) + 1e-9)
    least = 1 if plan.host.readout in PATCH_READOUTS else 0
    assert plan.counts == (least,) * 4
    assert bool(torch.isfinite(ps.apply(model, plan)(make_images(2))).all())


def test_an_unreachable_ratio_is_refused_with_what_can_be(kind: str) -> None:
    low, high = reachable(ps.inspect(make_host(kind)), ps.SearchConfig(removed="drop"))
    with pytest.raises(ps.BudgetError, match=f"{low:.3f} to {high:.3f}"):
        ps.search(make_host(kind), make_images(2), config(target_macs=low - 1e-3))


def test_a_generous_ratio_keeps_everything_that_is_read(kind: str) -> None:
    plan = searched(kind, target_macs=0.9999)
    if plan.host.readout in PATCH_READOUTS:
        assert sum(plan.counts) == 4 * PATCHES - 1
    else:
        assert plan.counts == (PATCHES, PATCHES, PATCHES, 0)
        assert readout_error(make_host(kind), make_images(IMAGES), plan) < 1e-10


def test_the_error_and_the_method_are_written_down(kind: str) -> None:
    target = target_at(kind, 0.6)
    plan = searched(kind, target_macs=target)
    known = plan.provenance
    error = readout_error(make_host(kind), make_images(IMAGES), plan)
    assert known["method"] == "greedy reconstruction"
    assert known["errors"] == {"readout": pytest.approx(error, rel=1e-3)}
    assert (known["images"], known["tolerance"]) == (IMAGES, None)
    assert known["macs_ratio"] == ratio(make_host(kind), plan)
    assert (known["settings"]["score"], known["settings"]["tune_epochs"]) == ("effect", 0)


@pytest.mark.parametrize("kind", ["class", "registers", "mean", "attention pool"])
def test_the_tolerance_holds_and_one_more_move_breaks_it(kind: str) -> None:
    model, images, found = make_host(kind), make_images(IMAGES), []
    for tolerance in (0.002, 0.02, 0.1):
        plan = searched(kind, tolerance=tolerance)
        assert plan.provenance["errors"]["readout"] <= tolerance
        assert plan.provenance["tolerance"] == tolerance
        assert readout_error(model, images, plan) <= 1.0001 * tolerance
        further = whole_path(kind).plan(moves_of(plan) + 1)
        assert readout_error(model, images, further) > 0.9999 * tolerance
        found.append(moves_of(plan))
    assert found[0] < found[1] < found[2]


def test_no_tolerance_keeps_everything_and_any_error_removes_all(kind: str) -> None:
    reads = ps.inspect(make_host(kind)).reads_patches
    assert searched(kind, tolerance=0.0).counts == (PATCHES, PATCHES, PATCHES, PATCHES if reads else 0)
    assert searched(kind, tolerance=1e9).counts == (int(reads),) * 4


def test_nothing_asked_for_means_the_papers_tolerance() -> None:
    assert searched("class").provenance["tolerance"] == 0.01
    assert searched("class").kept == searched("class", tolerance=0.01).kept


def test_a_host_of_one_block_has_nothing_to_remove_but_what_nobody_reads() -> None:
    for asked in ({"target_macs": 0.9}, {"tolerance": 0.01}):
        plan, _ = ps.search(make_host(depth=1), make_images(2), config(**asked))
        assert plan.counts == (0,)


def test_the_model_is_left_as_it_was() -> None:
    model = make_host().train()
    before, rng = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    ps.search(model, make_images(3), config(target_macs=0.5))
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), rng)


@pytest.mark.parametrize("kind", ["class", "mean with prefix"])
def test_the_same_seed_gives_the_same_bytes(kind: str) -> None:
    target = target_at(kind, 0.4)
    first = searched(kind, target_macs=target)
    torch.manual_seed(99)
    again, _ = ps.search(make_host(kind), make_images(IMAGES), config(target_macs=target))
    assert again.to_json() == first.to_json()
    assert searched(kind, target_macs=target, seed=1).provenance["settings"]["seed"] == 1


def test_the_plan_does_not_depend_on_the_cache() -> None:
    first = searched("class", target_macs=0.5)
    small = searched("class", target_macs=0.5, cache_gib=0.0)
    assert small.kept == first.kept
    assert small.provenance["errors"] == first.provenance["errors"]


@pytest.mark.parametrize(
    ("kind", "asked"), [("class", {"target_macs": 0.5}), ("class", {"tolerance": 0.02}), ("mean", {"tolerance": 0.05})]
)
def test_interrupted_anywhere_and_resumed_gives_the_same_bytes(
    kind: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    model, images = make_host(kind), make_images(3)
    heard: list[Mapping[str, Any]] = []
    expected, _ = ps.search(model, images, config(**asked), listen=heard.append)
    assert {event["event"] for event in heard} == {"stage"}
    assert len(heard) > 4
    for cut in range(len(heard)):
        folder = tmp_path / str(cut)
        with pytest.raises(Interrupted):
            ps.search(model, images, config(**asked), checkpoint=folder, listen=interrupt_after(cut))
        plan, _ = ps.search(model, images, config(**asked), checkpoint=folder)
        assert plan.to_json() == expected.to_json()


def test_what_was_found_out_is_not_found_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, chosen = make_host(), make_images(3), config(tolerance=0.02)
    expected, _ = ps.search(model, images, chosen, checkpoint=tmp_path)

    def refuse(*args: Any) -> None:
        raise AssertionError("measured or derived again")

    monkeypatch.setattr(greedy, "measure", refuse)
    monkeypatch.setattr(greedy.Greedy, "_stage", refuse)
    plan, _ = ps.search(model, images, chosen, checkpoint=tmp_path)
    assert plan.to_json() == expected.to_json()


def test_broken_weights_are_told() -> None:
    model: Any = make_host()
    with torch.no_grad():
        model.blocks[2].mlp.fc1.weight.fill_(torch.nan)
    for asked in ({"target_macs": 0.6}, {"tolerance": 0.02}):
        with pytest.raises(ps.PatchslimError, match="not a finite number"):
            ps.search(model, make_images(3), config(**asked))


def test_the_patches_chosen_lose_less_than_others_in_the_same_numbers(kind: str) -> None:
    """Same counts per block, patches in random order: orders drawn at random do worse on average."""
    model, images = make_host(kind), make_images(IMAGES)
    plan = searched(kind, target_macs=target_at(kind, 0.6))
    others = []
    for seed in range(6):
        order = torch.randperm(PATCHES, generator=torch.Generator().manual_seed(seed)).tolist()
        shuffled = make_plan(ps.inspect(model), [order[:count] for count in plan.counts])
        others.append(readout_error(model, images, shuffled))
    assert plan.provenance["errors"]["readout"] < sum(others) / len(others)


def test_it_beats_random_and_uniform_orders_on_trained_digits() -> None:
    model = timm.create_model("digits_vit", pretrained=True).eval()
    source = open_images("digits:train", model=model, limit=64)
    images = torch.cat([batch for batch, _ in source.batches(64)])
    found = {}
    for score in ("effect", "random", "uniform"):
        asked: dict[str, Any] = {"target_macs": 0.6, "batch_size": 64, "tune_epochs": 0, "step": 8}
        plan, _ = ps.search(model, images, ps.SearchConfig(score=score, **asked))
        assert 0.59 < ratio(model, plan) <= 0.6
        found[score] = readout_error(model, images, plan)
    assert found["effect"] < 0.5 * found["random"]
    assert found["effect"] < 0.5 * found["uniform"]
