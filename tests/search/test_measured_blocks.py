"""Searches that measure: which blocks drop instead of merging, and in how many patches are chosen."""

from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from patchslim.data import as_source
from patchslim.hosts import open_host
from patchslim.plan import SlimPlan, build_plan
from patchslim.search.features import Features
from patchslim.search.groups import likeness, static_groups
from patchslim.search.ledger import Ledger
from patchslim.search.measured import Draft, Measured
from patchslim.search.schedule import Counts, removing
from searches import IMAGES, PATCHES, WAYS, config, limits, ratio, readout_error, searched, target_at
from small import make_host, make_images

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


@cache
def measuring(kind: str, way: str) -> Measured:
    """A search of plans that merge, to ask for single errors."""
    host = open_host(make_host(kind))
    features = Features(host, as_source(make_images(3)), 3, 2**30)
    draft: Draft
    if WAYS[way]["select"] == "matched":

        def draft(counts: Counts, drops: tuple[int, ...]) -> SlimPlan:
            fields: dict[str, Any] = {"patches_per_block": list(counts), "drops": list(drops)}
            return build_plan(host.info, select="matched", removed="merge", **fields)

    else:
        found = likeness(host, features)

        def draft(counts: Counts, drops: tuple[int, ...]) -> SlimPlan:
            kept, into = static_groups(found, counts, drops)
            return build_plan(host.info, removed="merge", kept=kept, into=into)

    return Measured(host, features, config(way, target_macs=0.5), Ledger(), lambda event: None, draft)


@st.composite
def pairs(draw: st.DrawFn) -> Counts:
    """Counts that pairs can reach."""
    counts, left = [], PATCHES
    for _ in range(4):
        left = draw(st.integers(max(1, left // 2), left))
        counts.append(left)
    return tuple(counts)


@settings(max_examples=12, deadline=None)
@given(
    counts=pairs(),
    kind=st.sampled_from(["class", "mean with prefix"]),
    way=st.sampled_from(["matched merge", "fixed groups"]),
)
def test_blocks_drop_only_where_that_lowers_the_error(counts: Counts, kind: str, way: str) -> None:
    search = measuring(kind, way)
    counts = counts if search.info.reads_patches else (*counts[:3], 0)
    drops = search.choose_drops(counts)
    assert set(drops) <= set(removing(PATCHES, counts))
    assert search.error(counts, drops) <= search.error(counts)
    # Each was worth it when it was chosen, the last blocks first, and none that was left out would have been.
    for layer in removing(PATCHES, counts):
        later = tuple(drop for drop in drops if drop > layer)
        helps = search.error(counts, (layer, *later)) < search.error(counts, later)
        assert helps == (layer in drops)


@pytest.mark.parametrize("way", ["matched merge", "fixed groups"])
def test_a_block_that_drops_really_does_better(way: str) -> None:
    """By running the models, wherever some blocks drop and some merge; and there are such cases."""
    search, found = measuring("mean with prefix", way), 0
    model, images = make_host("mean with prefix"), make_images(3)
    for counts in [(8, 4, 2, 1), (12, 8, 5, 3), (16, 12, 9, 6), (13, 11, 9, 6), (10, 9, 8, 7), (14, 8, 7, 4)]:
        drops = search.choose_drops(counts)
        if 0 < len(drops) < len(removing(PATCHES, counts)):
            with_drops, without = (readout_error(model, images, search.draft(counts, some), {}) for some in (drops, ()))
            assert with_drops < without
            found += 1
    assert found


@pytest.mark.parametrize("way", ["matched merge", "fixed groups"])
def test_blocks_that_drop_get_counts_of_their_own(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts found while all blocks merged are a start; what is found is never worse, and somewhere it is better."""
    gains = []
    for kind, drops in product(("class", "mean with prefix"), ((1,), (2,), (1, 2))):
        search, target = measuring(kind, way), target_at(kind, way, 0.6)
        monkeypatch.setattr(search, "choose_drops", lambda counts, own=drops: own)
        plan, (counts, kept) = search._find()(target)
        assert kept == drops
        assert search.draft(counts, drops) == plan
        assert search.cost.of(counts) <= target * ps.count_macs(make_host(kind))
        gains.append(search.error(search.at_ratio(target), drops) - search.error(counts, drops))
    assert min(gains) >= 0
    assert max(gains) > 0


@pytest.mark.parametrize("way", ["matched merge", "fixed groups"])
@pytest.mark.parametrize("tolerance", [0.05, 0.3])
def test_the_tolerance_holds_before_blocks_drop(way: str, tolerance: float) -> None:
    for kind in ("class", "mean with prefix"):
        search = measuring(kind, way)
        counts = search.within(tolerance)
        assert search.error(counts) <= tolerance
        assert min(counts[:3]) < PATCHES


@pytest.mark.parametrize("way", ["matched merge", "matched drop", "static merge", "predicted merge", "predicted drop"])
@pytest.mark.parametrize("asked", ["ratio", "tolerance"])
def test_few_blocks_choose_where_few_may(asked: str, way: str) -> None:
    model, images, target = make_host(), make_images(IMAGES), target_at("class", way, 0.6)
    limit = {"target_macs": target} if asked == "ratio" else {"tolerance": 0.1}
    free, _ = searched("class", way, **limit)
    most = len(free.choosing) - 1
    assert most > 0  # or there is nothing to see
    plan, _ = ps.search(model, images, config(way, choosing_blocks=most, **limit))
    assert 0 < len(plan.choosing) <= most
    if asked == "ratio":
        assert 0.9 * target < ratio(model, plan) <= target
    else:
        assert ratio(model, plan) < 1


def test_too_few_blocks_to_choose_in_are_told() -> None:
    low, _ = limits("class", "matched merge")
    with pytest.raises(ps.BudgetError, match="so few blocks choose \\(1\\)"):
        ps.search(make_host(), make_images(2), config("matched merge", target_macs=low + 0.02, choosing_blocks=1))
    with pytest.raises(ps.BudgetError, match="is for images that choose"):
        ps.SearchConfig(target_macs=0.6, removed="drop", choosing_blocks=2)


def test_removing_blocks_are_those_that_keep_some_and_not_all() -> None:
    assert removing(16, [16, 12, 12, 0]) == [2]
    assert removing(16, [15, 15, 7, 1]) == [1, 3, 4]
    assert removing(16, [16, 16, 16, 0]) == []
