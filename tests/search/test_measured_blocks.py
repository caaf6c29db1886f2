"""Searches that measure: which blocks drop instead of merging, and in how many patches are chosen."""

from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from patchslim.evidence.coverage import CoverageSets
from patchslim.evidence.distances import find_distances
from patchslim.methods import Cover, Merge, Predict, Task
from patchslim.search import Drops, Target
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
        search, target = measuring(kind, way), target_at(kind, way, 0.75)
        monkeypatch.setattr(search, "choose_drops", lambda counts, own=drops: own)
        search.known = None  # as if nothing had been searched for yet
        plan, (counts, kept) = search.find(target)
        assert kept == drops
        assert search.draft.plan(counts, drops) == plan
        assert search.cost.of(counts) <= target * ps.count_macs(make_host(kind))
        gains.append(search.error(search.at_ratio(target), drops) - search.error(counts, drops))
    assert min(gains) >= 0
    assert max(gains) > 0


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


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7])
@pytest.mark.parametrize("way", [Merge, Cover])
def test_one_block_can_remove_whatever_is_asked(way: Any, share: float) -> None:
    target = target_at("class", way.name, share)
    plan = slim_by(make_host(), make_images(2), way(blocks=1), macs=target).plan
    assert len(plan.choosing) == 1
    assert ratio(make_host(), plan) <= target
