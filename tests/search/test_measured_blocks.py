"""Searches that measure: which blocks drop instead of merging, and in how many patches are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from patchslim.evidence.coverage import CoverageSets
from patchslim.evidence.distances import find_distances
from patchslim.macs import host_macs
from patchslim.methods import Cover, Merge, Predict, Task
from patchslim.search import Drops, Target
from patchslim.search.cost import MacCost
from patchslim.search.measured import Measured
from patchslim.search.schedule import Counts, removing
from patchslim.slimmed import apply
from patchslim.slimmed.assemble import own_weights
from searches import IMAGES, PATCHES, limits, ratio, readout_error, searched, slim_by, target_at
from small import make_host, make_images

MERGING = ["merge", "cover"]


@cache
def measuring(kind: str, way: str) -> Measured:
    """A search of plans that merge, to ask for single errors."""
    task = Task.of(make_host(kind), make_images(3), Target(macs=0.8))
    parts = find_distances(task.host, task.features, task.cache, 0, task.progress)
    draft = Merge(blocks=None).draft(task.info)
    if way == "cover":
        draft = Cover().draft(task.info, CoverageSets(task.host, task.features, parts))
    return Measured(task.host, task.features, task.cache, task.progress, draft, task.limit(draft), parts)


def slim_of(search: Measured, counts: Counts, drops: Drops) -> Any:
    plan = search.draft.plan(counts, drops)
    return apply(search.host.model, plan, own_weights(search.host, plan, search.parts))


@st.composite
def falling(draw: st.DrawFn) -> Counts:
    """Any counts."""
    counts, left = [], PATCHES
    for _ in range(4):
        left = draw(st.integers(1, left))
        counts.append(left)
    return tuple(counts)


@settings(max_examples=12, deadline=None)
@given(counts=falling(), way=st.sampled_from(MERGING), kind=st.sampled_from(["class", "mean with prefix"]))
def test_a_block_drops_only_where_that_measures_better(counts: Counts, way: str, kind: str) -> None:
    """Each was worth it when it was chosen, the last blocks first, and none that was left out would have been."""
    search = measuring(kind, way)
    if not search.info.reads_patches:
        counts = (*counts[:-1], 0)
    drops = search.choose_drops(counts)
    assert set(drops) <= set(removing(PATCHES, counts))
    for layer in removing(PATCHES, counts):
        later = tuple(drop for drop in drops if drop > layer)
        helps = search.error(counts, (layer, *later)) < search.error(counts, later)
        assert helps == (layer in drops)


@pytest.mark.parametrize("way", MERGING)
def test_a_block_that_drops_really_does_better(way: str) -> None:
    """By running the models, wherever some blocks drop and some merge; and there are such cases."""
    search, found = measuring("registers", way), 0
    model, images = make_host("registers"), make_images(3)
    for counts in [(8, 4, 2, 0), (12, 8, 5, 0), (16, 12, 9, 0), (13, 11, 9, 0), (10, 9, 8, 0), (14, 8, 7, 0)]:
        drops = search.choose_drops(counts)
        if 0 < len(drops) < len(removing(PATCHES, counts)):
            with_drops, without = (readout_error(model, images, slim_of(search, counts, own)) for own in (drops, ()))
            assert with_drops < without
            found += 1
    assert found


@pytest.mark.parametrize("way", MERGING)
def test_blocks_that_drop_get_counts_of_their_own(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts found while all blocks merged are a start; what is found is never worse, and somewhere it is better."""
    gains = []
    for kind, drops in product(("class", "mean with prefix"), ((1,), (2,), (1, 2))):
        search, target = measuring(kind, way), target_at(kind, way, 0.6)
        monkeypatch.setattr(search, "choose_drops", lambda counts, own=drops: own)
        search.known = None  # as if nothing had been searched for yet
        plan, (counts, kept) = search.find(target)
        assert kept == drops
        assert search.draft.plan(counts, drops) == plan
        assert search.cost.of(counts) <= target * ps.count_macs(make_host(kind))
        gains.append(search.error(search.at_ratio(target), drops) - search.error(counts, drops))
    assert min(gains) >= 0
    assert max(gains) > 0


@dataclass(frozen=True)
class Dear(MacCost):
    """It costs a share of the host's MACs, too, to choose patches in a block."""

    price: float = 0.0

    def of(self, counts: Sequence[int]) -> int:
        blocks = len(removing(PATCHES, counts))
        return super().of(counts) + int(self.price * blocks * host_macs(self.draft.info))


@pytest.mark.parametrize(("price", "least"), [(0.0, 2), (0.1, 1), (0.15, 1)])
def test_as_many_blocks_choose_as_pay(price: float, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error of nobody's making, that prefers many small removals: near the best of all counts there are."""
    weights, search = (3.0, 2.0, 1.5), measuring("class", "cover")

    def error(counts: Counts, drops: Drops = ()) -> float:
        return sum(w * own**2 for w, own in zip(weights, search.schedule.removals(counts), strict=True))

    cost, limit = Dear(search.draft, price), 0.7 * host_macs(search.info)
    monkeypatch.setattr(search, "cost", cost)
    monkeypatch.setattr(search, "error", error)
    found = search.at_ratio(0.7)
    every = [(*own, 0) for own in product(range(1, PATCHES + 1), repeat=3) if own[0] >= own[1] >= own[2]]
    best = min((own for own in every if cost.of(own) <= limit), key=error)
    assert cost.of(found) <= limit
    assert error(found) <= 1.2 * error(best)
    assert (len(removing(PATCHES, found)) > 1) == (least > 1)


@pytest.mark.parametrize("way", [Merge, Cover, Predict])
@pytest.mark.parametrize("asked", ["macs", "tolerance"])
def test_few_blocks_choose_where_few_may(asked: str, way: Any) -> None:
    model, images, target = make_host(), make_images(IMAGES), target_at("class", way.name, 0.5)
    limit = {"macs": target} if asked == "macs" else {"tolerance": 0.1}
    most = len(searched("class", way.name, **limit).plan.choosing) - 1
    assert most > 0  # or there is nothing to see
    settings = {"epochs": 3} if way is Predict else {}
    plan = slim_by(model, images, way(blocks=most, **settings), **limit).plan
    assert 0 < len(plan.choosing) <= most
    if asked == "macs":
        assert 0.9 * target < ratio(model, plan) <= target
    else:
        assert ratio(model, plan) < limits("class", way.name)[1]


def test_more_blocks_choose_where_so_few_cannot_remove_enough_and_that_is_told() -> None:
    """Pairs halve a block's patches at most; the others have to help."""
    model, heard = make_host(), list[Any]()
    target = limits("class", "merge")[0] + 0.02
    plan = slim_by(model, make_images(2), Merge(blocks=1), macs=target, progress=heard.append).plan
    assert ratio(model, plan) <= target
    told = [event["blocks"] for event in heard if event["event"] == "blocks"]
    assert told == list(range(2, len(plan.choosing) + 1))
