"""Patches per block from removals: bounds and round trips, budgets met from below, the cheapest way down, and moves
that only help."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from patchslim.hosts import HostInfo
from patchslim.macs import macs_of_counts
from patchslim.search import schedule
from patchslim.search.schedule import MOVES, STRIDE, Counts, Slots, concentrate, descend, improve, removing
from small import make_host


@cache
def host(depth: int, patches: int, reads_patches: bool) -> HostInfo:
    """A host of any depth and size; only its description is needed."""
    base = ps.inspect(make_host("mean" if reads_patches else "class"))
    return replace(base, depth=depth, patches=patches, grid=(1, patches), blocks=base.blocks[:1] * depth)


@st.composite
def slots(draw: st.DrawFn, least_depth: int = 1) -> Slots:
    """Hosts of any size and readout, in pairs or not."""
    info = host(draw(st.integers(least_depth, 6)), draw(st.integers(2, 60)), draw(st.booleans()))
    return Slots(info, halves=draw(st.booleans()))


@st.composite
def schedules(draw: st.DrawFn, least_depth: int = 1, most: float = 12.0) -> tuple[Slots, list[float]]:
    """Slots, and removals for them."""
    own = draw(slots(least_depth))
    removal = st.just(0.0) | st.floats(0.01, most)
    return own, draw(st.lists(removal, min_size=own.blocks, max_size=own.blocks))


@st.composite
def kept(draw: st.DrawFn) -> tuple[Slots, Counts]:
    """Slots, and counts that they allow."""
    own = draw(slots())
    counts: list[int] = []
    for _ in range(own.blocks):
        left = counts[-1] if counts else own.info.patches
        counts.append(draw(st.integers(max(1, left // 2) if own.halves else 1, left)))
    return own, (*counts, *[0] * (own.info.depth - own.blocks))


@settings(max_examples=100, deadline=None)
@given(schedules(), st.floats(0, 2) | st.floats(0, 100))
def test_counts_fall_within_bounds_and_one_stays_until_the_last(drawn: tuple[Slots, list[float]], scale: float) -> None:
    own, removals = drawn
    info, counts = own.info, own.counts(removals, scale)
    assert len(counts) == info.depth
    above = (info.patches, *counts)
    assert all(before >= after for before, after in itertools.pairwise(above))
    assert all(count >= 1 for count in counts[:-1])
    assert counts[-1] >= 1 if info.reads_patches else counts[-1] == 0
    for block in range(own.blocks):
        total = sum(removal * scale for removal in removals[: block + 1])
        if own.halves:
            assert above[block + 1] >= above[block] // 2
            assert above[block + 1] >= max(1, info.patches - round(total)) or above[block + 1] == above[block]
        else:
            assert above[block + 1] == max(1, info.patches - round(total))


@settings(max_examples=60, deadline=None)
@given(schedules(), st.floats(0, 10), st.floats(0, 10))
def test_a_larger_scale_keeps_no_more_in_any_block(drawn: tuple[Slots, list[float]], one: float, two: float) -> None:
    own, removals = drawn
    more, fewer = own.counts(removals, min(one, two)), own.counts(removals, max(one, two))
    assert all(a >= b for a, b in zip(more, fewer, strict=True))
    assert own.counts(removals, 0.0)[: own.blocks] == (own.info.patches,) * own.blocks


@settings(max_examples=60, deadline=None)
@given(kept())
def test_removals_lead_back_to_their_counts(drawn: tuple[Slots, Counts]) -> None:
    own, counts = drawn
    removals = own.removals(counts)
    assert len(removals) == own.blocks
    assert sum(removals) == own.info.patches - (counts[own.blocks - 1] if own.blocks else own.info.patches)
    assert own.counts(removals, 1.0) == counts


@settings(max_examples=40, deadline=None)
@given(slots())
def test_everything_and_the_least_bound_all_counts(own: Slots) -> None:
    info, most, fewest = own.info, own.everything, own.least
    tail = () if info.reads_patches else (0,)
    assert most == (*[info.patches] * own.blocks, *tail)
    expected, left = [], info.patches
    for _ in range(own.blocks):
        left = max(1, left // 2) if own.halves else 1
        expected.append(left)
    assert fewest == (*expected, *tail)


def macs(own: Slots, counts: Counts) -> int:
    """MACs that fall with every patch: static drop."""
    return macs_of_counts(own.info, counts, "drop")


def within(own: Slots, share: float) -> Callable[[Counts], bool]:
    """Whether counts stay within a budget, `share` of the way from the least MACs to the most."""
    low, high = macs(own, own.least), macs(own, own.everything)
    budget = low + share * (high - low)
    return lambda counts: macs(own, counts) <= budget


@settings(max_examples=100, deadline=None)
@given(schedules(), st.floats(0, 1))
def test_fitting_meets_a_budget_from_below_to_a_patch_per_block(drawn: tuple[Slots, list[float]], share: float) -> None:
    own, removals = drawn
    fits, most = within(own, share), own.counts(removals, 1e12)
    found = own.fit(removals, fits)
    if not fits(most):
        assert found == most
        assert removals[0] == 0  # what the first block begins to remove reaches every budget
        return
    assert fits(found)
    one_more = tuple(min(count + 1, top) for count, top in zip(found, own.everything, strict=True))
    assert found == own.everything or not fits(one_more)


@settings(max_examples=40, deadline=None)
@given(schedules(), st.floats(1e-3, 1e3), st.floats(0, 1))
def test_the_unit_of_removals_does_not_matter(drawn: tuple[Slots, list[float]], unit: float, share: float) -> None:
    own, removals = drawn
    removals = [float(round(removal)) for removal in removals]
    fits = within(own, share)
    one, other = own.fit(removals, fits), own.fit([removal * unit for removal in removals], fits)
    assert all(abs(a - b) <= 1 for a, b in zip(one, other, strict=True))  # where two blocks round at the same scale


Weights = tuple[list[float], float]


@st.composite
def descents(draw: st.DrawFn) -> tuple[Slots, Weights, float]:
    """Slots, an error that grows with every patch removed at a rate of the block's own, and a share of the MACs."""
    own = draw(slots(least_depth=2))
    weight = st.floats(0, 10)
    weights = draw(st.lists(weight, min_size=own.blocks, max_size=own.blocks))
    return own, (weights, draw(st.sampled_from([0.5, 1.0, 2.0]))), draw(st.floats(0, 1))


def costs(own: Slots, given: Weights) -> Callable[[Counts], float]:
    """Σ w_l · (patches gone at block l)^p."""
    weights, power = given
    return lambda counts: sum(
        weight * (own.info.patches - count) ** power for weight, count in zip(weights, counts, strict=False)
    )


def improved(own: Slots, given: Weights, share: float) -> tuple[Counts, Counts, Any, Any]:
    """(start, end) of an improvement, and the error and the fit it ran with.

    The error is infinite past the budget: not all removals can be scaled to fit it.
    """
    price, fits = costs(own, given), within(own, share)

    def error(counts: Counts) -> float:
        return price(counts) if fits(counts) else math.inf

    def fit(removals: Sequence[float]) -> Counts:
        return own.fit(removals, fits)

    begin = fit([1.0] * own.blocks)
    return begin, improve(own, error, fit, begin), error, fit


def steps(own: Slots, counts: Counts, stride: int) -> list[Counts]:
    """What removing `stride` more patches in one block leads to, for each block."""
    found = []
    for block in range(own.blocks):
        removals = [a - b for a, b in itertools.pairwise((own.info.patches, *counts))][: own.blocks]
        removals[block] += stride
        left, gone, after = own.info.patches, 0, []
        for removal in removals:
            gone += removal
            left = min(left, max(max(1, left // 2) if own.halves else 1, own.info.patches - gone))
            after.append(left)
        found.append((*after, *counts[own.blocks :]))
    return [after for after in found if after != counts]


@settings(max_examples=40, deadline=None)
@given(descents())
def test_descending_takes_the_cheapest_step_each_time_until_it_is_enough(drawn: tuple[Slots, Weights, float]) -> None:
    own, weights, share = drawn
    error, fits = costs(own, weights), within(own, share)
    end = descend(own, error, lambda counts: macs(own, counts), fits)
    assert fits(end)
    counts, stride = own.everything, max(1, round(STRIDE * own.info.patches))
    while not fits(counts):
        rates = [
            (error(after) - error(counts)) / (macs(own, counts) - macs(own, after))
            for after in steps(own, counts, stride)
        ]
        counts = steps(own, counts, stride)[rates.index(min(rates))]
    assert end == counts


@settings(max_examples=40, deadline=None)
@given(slots())
def test_descending_ends_where_nothing_is_left_to_remove(own: Slots) -> None:
    weights = ([1.0] * own.blocks, 1.0)
    assert descend(own, costs(own, weights), lambda counts: macs(own, counts), lambda counts: False) == own.least
    assert descend(own, costs(own, weights), lambda counts: macs(own, counts), lambda counts: True) == own.everything


@settings(max_examples=40, deadline=None)
@given(descents())
def test_improving_never_raises_the_error(drawn: tuple[Slots, Weights, float]) -> None:
    begin, end, error, _ = improved(*drawn)
    assert error(end) <= error(begin) < math.inf
    assert len(end) == len(begin)


def neighbours(own: Slots, fit: Any, counts: Counts, size: float) -> list[Counts]:
    """One block removes `size` patches more or fewer, the others in proportion."""
    found = []
    for block, change in itertools.product(range(own.blocks), (size, -size)):
        removals = [float(a - b) for a, b in itertools.pairwise((own.info.patches, *counts))][: own.blocks]
        removals[block] = max(0.0, removals[block] + change)
        if any(removals):
            found.append(fit(removals))
    return found


@settings(max_examples=40, deadline=None)
@given(descents())
def test_improving_ends_where_no_single_move_helps(drawn: tuple[Slots, Weights, float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "SWEEPS", 10_000)  # as many as it takes
        _, end, error, fit = improved(*drawn)
    size = max(1.0, round(min(MOVES) * drawn[0].info.patches))
    if any(drawn[0].removals(end)):
        for other in neighbours(drawn[0], fit, end, size):
            assert error(other) >= error(end)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("reads_patches", [False, True])
def test_a_few_sweeps_help(reads_patches: bool, halves: bool) -> None:
    own = Slots(host(4, 48, reads_patches), halves)
    begin, end, error, _ = improved(own, ([9.0, 3.0, 0.3, 0.1][: own.blocks], 2.0), 0.6)
    assert error(end) < 0.95 * error(begin)


def test_where_nothing_is_removed_nothing_moves() -> None:
    own = Slots(host(4, 16, False))
    everything = (16, 16, 16, 0)

    def fit(removals: Sequence[float]) -> Counts:
        raise AssertionError("there is nothing to scale")

    assert improve(own, lambda counts: 1.0, fit, everything) == everything


@settings(max_examples=60, deadline=None)
@given(kept(), st.integers(1, 5), st.integers(0, 9))
def test_few_blocks_remove_what_many_did(drawn: tuple[Slots, Counts], most: int, seed: int) -> None:
    own, counts = drawn
    budget = macs_of_counts(own.info, counts)

    def fit(removals: Sequence[float]) -> Counts:
        return own.fit(removals, lambda found: macs_of_counts(own.info, found) <= budget)

    def error(found: Counts) -> float:
        worth = [(seed * (block + 3)) % 7 + 1 for block in range(own.blocks)]
        removals = own.removals(found)
        inside = macs_of_counts(own.info, found) <= budget
        return sum(one * removal**2 for one, removal in zip(worth, removals, strict=True)) if inside else math.inf

    blocks = removing(own.info.patches, counts)
    try:
        found = concentrate(own, error, fit, counts, most)
    except ps.BudgetError:
        assert own.halves  # without pairs one block can remove everything
        return
    assert len(removing(own.info.patches, found)) <= most
    assert macs_of_counts(own.info, found) <= budget
    if len(blocks) <= most:
        assert found == counts
    if len(blocks) == most + 1:  # one has to stop: all ways of that, by hand
        left = [
            [0.0 if block == layer - 1 else one for block, one in enumerate(own.removals(counts))] for layer in blocks
        ]
        trials = [trial for trial in map(fit, left) if len(removing(own.info.patches, trial)) < len(blocks)]
        assert error(found) == min(map(error, trials))
