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
from patchslim.search import schedule
from patchslim.search.schedule import (
    MOVES,
    STRIDE,
    Counts,
    Schedule,
    concentrate,
    descend,
    improve,
    make_divisible,
    removing,
)
from small import make_host

WIDTH = 24


@cache
def host(depth: int, patches: int, reads_patches: bool) -> HostInfo:
    """A host of any depth and size; only its description is needed."""
    base = ps.inspect(make_host("mean" if reads_patches else "class"))
    return replace(base, depth=depth, patches=patches, grid=(1, patches), blocks=base.blocks[:1] * depth)


@st.composite
def schedules(draw: st.DrawFn, least_depth: int = 1) -> Schedule:
    """For hosts of any size and readout."""
    info = host(draw(st.integers(least_depth, 6)), draw(st.integers(2, 60)), draw(st.booleans()))
    return Schedule(info)


@st.composite
def removals(draw: st.DrawFn) -> tuple[Schedule, list[float]]:
    """A schedule, and how much its blocks remove."""
    own = draw(schedules())
    return own, draw(st.lists(st.just(0.0) | st.floats(0.01, 12), min_size=own.blocks, max_size=own.blocks))


@st.composite
def kept(draw: st.DrawFn) -> tuple[Schedule, Counts]:
    """A schedule, and counts that it allows."""
    own = draw(schedules())
    counts: list[int] = []
    for _ in range(own.blocks):
        left = counts[-1] if counts else own.info.patches
        counts.append(draw(st.integers(1, left)))
    return own, (*counts, *[0] * (own.info.depth - own.blocks))


@settings(max_examples=100, deadline=None)
@given(removals(), st.floats(0, 2) | st.floats(0, 100), st.sampled_from([1, 1, 4, 8]))
def test_counts_follow_the_removals_within_bounds(
    drawn: tuple[Schedule, list[float]], scale: float, multiple: int
) -> None:
    own = replace(drawn[0], multiple=multiple)
    info, counts, left = own.info, own.counts(drawn[1], scale), own.info.patches
    for block, gone in enumerate(itertools.accumulate(removal * scale for removal in drawn[1])):
        wanted = max(1, info.patches - round(gone))
        left = min(left, make_divisible(info, multiple, wanted))
        assert counts[block] == left >= 1
    assert counts[own.blocks :] == (() if info.reads_patches else (0,))
    assert own.counts(drawn[1], 0.0) == own.everything


@settings(max_examples=60, deadline=None)
@given(removals(), st.floats(0, 10), st.floats(0, 10))
def test_a_larger_scale_keeps_no_more_in_any_block(drawn: tuple[Schedule, list[float]], one: float, two: float) -> None:
    own, wanted = drawn
    more, fewer = own.counts(wanted, min(one, two)), own.counts(wanted, max(one, two))
    assert all(a >= b for a, b in zip(more, fewer, strict=True))


@settings(max_examples=60, deadline=None)
@given(kept())
def test_removals_lead_back_to_their_counts_which_lie_between_everything_and_the_least(
    drawn: tuple[Schedule, Counts],
) -> None:
    own, counts = drawn
    found = own.removals(counts)
    assert len(found) == own.blocks
    assert own.counts(found, 1.0) == counts
    assert own.counts(own.removals(own.least), 1.0) == own.least
    assert all(a >= b >= c for a, b, c in zip(own.everything, counts, own.least, strict=True))
    assert own.least[: own.blocks] == (1,) * own.blocks


@given(st.integers(1, 300), st.integers(0, 5), st.integers(1, 70), st.data())
def test_counts_are_made_divisible_upwards(patches: int, prefix: int, multiple: int, data: st.DataObject) -> None:
    info = replace(host(2, 16, False), patches=patches, prefix_tokens=prefix)
    count = data.draw(st.integers(0, patches))
    found = make_divisible(info, multiple, count)
    fitting = [n for n in range(count, patches + 1) if (prefix + n) % multiple == 0 or n == patches]
    assert found == (min(fitting) if count else 0)


def macs(own: Schedule, counts: Counts) -> float:
    """MACs that fall with every patch: static drop, by the closed form."""
    prefix, total = own.info.prefix_tokens, 0.0
    for n_in, n in itertools.pairwise(prefix + count for count in (own.info.patches, *counts)):
        total += 2 * (n_in + n) * WIDTH**2 + 2 * n * n_in * WIDTH + 4 * n * WIDTH**2
    return total


def within(own: Schedule, share: float) -> Callable[[Counts], bool]:
    """Whether counts stay within a budget, `share` of the way from the least MACs to the most."""
    low, high = macs(own, own.least), macs(own, own.everything)
    return lambda counts: macs(own, counts) <= low + share * (high - low)


@settings(max_examples=100, deadline=None)
@given(removals(), st.floats(0, 1))
def test_fitting_meets_a_budget_from_below_to_a_patch_per_block(
    drawn: tuple[Schedule, list[float]], share: float
) -> None:
    own, wanted = drawn
    fits, most = within(own, share), own.counts(wanted, 1e12)
    found = own.fit(wanted, fits)
    if not fits(most):
        assert found == most
        assert wanted[0] == 0  # what the first block begins to remove reaches every budget
        return
    assert fits(found)
    one_more = tuple(min(count + 1, top) for count, top in zip(found, own.everything, strict=True))
    assert found == own.everything or not fits(one_more)


@settings(max_examples=40, deadline=None)
@given(removals(), st.floats(1e-3, 1e3), st.floats(0, 1))
def test_the_unit_of_removals_does_not_matter(drawn: tuple[Schedule, list[float]], unit: float, share: float) -> None:
    own, wanted = drawn[0], [float(round(removal)) for removal in drawn[1]]
    fits = within(own, share)
    one, other = own.fit(wanted, fits), own.fit([removal * unit for removal in wanted], fits)
    assert all(abs(a - b) <= 1 for a, b in zip(one, other, strict=True))  # where two blocks round at the same scale


Weights = tuple[list[float], float]


@st.composite
def descents(draw: st.DrawFn) -> tuple[Schedule, Weights, float]:
    """A schedule, an error that grows with every patch removed at a rate of the block's own, a share of the MACs."""
    own = draw(schedules(least_depth=2))
    weights = draw(st.lists(st.floats(0, 10), min_size=own.blocks, max_size=own.blocks))
    return own, (weights, draw(st.sampled_from([0.5, 1.0, 2.0]))), draw(st.floats(0, 1))


def costs(own: Schedule, given: Weights) -> Callable[[Counts], float]:
    """Σ w_l · (patches gone at block l)^p."""
    weights, power = given
    return lambda counts: sum(
        weight * (own.info.patches - count) ** power for weight, count in zip(weights, counts, strict=False)
    )


def improved(own: Schedule, given: Weights, share: float) -> tuple[Counts, Counts, Any, Any]:
    """(start, end) of an improvement, and the error and the fit it ran with.

    The error is infinite past the budget: not all removals can be scaled to fit it.
    """
    price, fits = costs(own, given), within(own, share)

    def error(counts: Counts) -> float:
        return price(counts) if fits(counts) else math.inf

    def fit(wanted: Sequence[float]) -> Counts:
        return own.fit(wanted, fits)

    begin = fit([1.0] * own.blocks)
    return begin, improve(own, error, fit, begin), error, fit


def steps(own: Schedule, counts: Counts, stride: int) -> list[Counts]:
    """What removing `stride` more patches in one block leads to, for each block."""
    found = []
    for block in range(own.blocks):
        wanted = [a - b for a, b in itertools.pairwise((own.info.patches, *counts))][: own.blocks]
        wanted[block] += stride
        left, gone, after = own.info.patches, 0, []
        for removal in wanted:
            gone += removal
            left = min(left, max(1, own.info.patches - gone))
            after.append(left)
        found.append((*after, *counts[own.blocks :]))
    return [after for after in found if after != counts]


@settings(max_examples=40, deadline=None)
@given(descents())
def test_descending_takes_the_cheapest_step_each_time_until_it_is_enough(
    drawn: tuple[Schedule, Weights, float],
) -> None:
    own, weights, share = drawn
    error, fits = costs(own, weights), within(own, share)
    counts, stride = own.everything, max(1, round(STRIDE * own.info.patches))
    while not fits(counts):
        further = steps(own, counts, stride)
        if not further:
            break
        rates = [(error(after) - error(counts)) / (macs(own, counts) - macs(own, after)) for after in further]
        counts = further[rates.index(min(rates))]
    assert descend(own, error, lambda counts: macs(own, counts), fits) == counts
    assert fits(counts) or counts == own.least


@settings(max_examples=60, deadline=None)
@given(descents())
def test_improving_never_raises_the_error_and_ends_where_no_single_move_helps(
    drawn: tuple[Schedule, Weights, float],
) -> None:
    own, _, _ = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "SWEEPS", 10_000)  # as many as it takes
        begin, end, error, fit = improved(*drawn)
    assert error(end) <= error(begin) < math.inf
    if not any(own.removals(end)):
        assert end == begin == own.everything  # nothing moves where nothing is removed
        return
    size = max(1.0, round(min(MOVES) * own.info.patches))
    for block, change in itertools.product(range(own.blocks), (size, -size)):
        wanted = own.removals(end)
        wanted[block] = max(0.0, wanted[block] + change)
        assert not any(wanted) or error(fit(wanted)) >= error(end)


@pytest.mark.parametrize("reads_patches", [False, True])
def test_a_few_sweeps_help(reads_patches: bool) -> None:
    own = Schedule(host(4, 48, reads_patches))
    begin, end, error, _ = improved(own, ([9.0, 3.0, 0.3, 0.1][: own.blocks], 2.0), 0.6)
    assert error(end) < 0.95 * error(begin)


def test_removing_blocks_are_those_that_keep_some_and_not_all() -> None:
    assert removing(16, [16, 12, 12, 0]) == [2]
    assert removing(16, [15, 15, 7, 1]) == [1, 3, 4]
    assert removing(16, [16, 16, 16, 0]) == []


@settings(max_examples=60, deadline=None)
@given(kept(), st.integers(1, 5), st.integers(0, 9))
def test_few_blocks_remove_what_many_did(drawn: tuple[Schedule, Counts], most: int, seed: int) -> None:
    own, counts = drawn
    budget = macs(own, counts)

    def fit(wanted: Sequence[float]) -> Counts:
        return own.fit(wanted, lambda found: macs(own, found) <= budget)

    def error(found: Counts) -> float:
        worth = [(seed * (block + 3)) % 7 + 1 for block in range(own.blocks)]
        wanted = own.removals(found)
        inside = macs(own, found) <= budget
        return sum(one * removal**2 for one, removal in zip(worth, wanted, strict=True)) if inside else math.inf

    blocks = removing(own.info.patches, counts)
    found = concentrate(own, error, fit, counts, most)
    assert len(removing(own.info.patches, found)) <= most
    assert macs(own, found) <= budget
    if len(blocks) <= most:
        assert found == counts
    if len(blocks) == most + 1:  # one has to stop: all ways of that, by hand
        left = [
            [0.0 if block == layer - 1 else one for block, one in enumerate(own.removals(counts))] for layer in blocks
        ]
        trials = [trial for trial in map(fit, left) if len(removing(own.info.patches, trial)) < len(blocks)]
        assert error(found) == min(map(error, trials))
