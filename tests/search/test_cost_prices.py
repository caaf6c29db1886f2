"""Prices of a block's parts: a closed form is found again, noise is held in check, and no token is ever a gain."""

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from patchslim.macs import steps_macs
from patchslim.methods import Cover as CoverMethod
from patchslim.plan import static_steps
from patchslim.search.cost import PARTS, LatencyCost, fit_prices, parts_of
from patchslim.steps import Step
from patchslim.steps.cover import Cover
from patchslim.steps.merge import Merge
from patchslim.steps.predict import Predict
from small import make_host, steps_for

HOST = make_host()
INFO = ps.inspect(HOST)
PROBES = [[16, 16, 16, 0], [13, 10, 7, 0], [8, 8, 8, 0], [15, 9, 3, 0], [6, 5, 2, 0], [16, 8, 1, 0]]
PRICES = [0.2, 3e-5, 2e-5, 5e-5, 0.0, 0.0, 0.0]  # of being called, keys and values, the rest, attention
KINDS: dict[str, Callable[[list[int]], list[Step]]] = {
    "slice": lambda counts: static_steps(INFO, counts, "slice"),
    "carry": lambda counts: static_steps(INFO, counts, "carry"),
    "cover": lambda counts: steps_for(HOST, lambda n, layer: Cover(n=n, channels=3), counts),
    "merge": lambda counts: steps_for(HOST, lambda n, layer: Merge(n=n, channels=3), counts),
    "predict": lambda counts: steps_for(HOST, lambda n, layer: Predict(n=n, selector="context", hidden=2), counts),
}


def rows(kind: str, probes: list[list[int]] = PROBES) -> list[list[float]]:
    return [block for counts in probes for block in parts_of(INFO, KINDS[kind](counts))]


def paid(parts: Sequence[float], prices: Sequence[float]) -> float:
    return sum(price * part for price, part in zip(prices, parts, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_the_closed_form_of_each_block_and_add_up_to_the_plans_macs(kind: str) -> None:
    for counts in PROBES:
        total, tokens, chose = float(INFO.embed_macs + INFO.head_macs), 17, False
        for parts, count in zip(parts_of(INFO, KINDS[kind](counts)), counts, strict=True):
            n, removes = 1 + count, 0 < count < tokens - 1
            assert parts[:4] == [1, 2 * tokens * 24**2, 2 * n * 24**2 + n * 2 * 24 * 48, 2 * n * tokens * 24]
            assert parts[4] == (parts[3] if chose and kind in ("cover", "merge") else 0)  # keys have sizes by now
            assert (parts[5] == 1) == (parts[6] > 0) == (removes and kind not in ("slice", "carry"))
            assert len(parts) == PARTS
            total += sum(parts[1:4]) + parts[6]
            tokens, chose = 17 if kind == "carry" else n, chose or removes
        assert total == steps_macs(INFO, KINDS[kind](counts))


def test_a_block_that_is_the_sum_of_its_parts_is_found_again() -> None:
    parts = rows("slice")
    found = fit_prices(parts, [paid(row, PRICES) for row in parts])
    others = [[*sorted(counts, reverse=True), 0] for counts in itertools.product(range(0, 17, 4), repeat=3)]
    for row in rows("slice", others):
        assert paid(row, found) == pytest.approx(paid(row, PRICES), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_times_in_proportion_to_macs_give_macs(kind: str) -> None:
    parts = rows(kind)
    flat = [0.0, 1e-5, 1e-5, 1e-5, 0.0, 0.0, 1e-5]
    found = fit_prices(parts, [paid(row, flat) for row in parts])
    assert all(paid(row, found) == pytest.approx(paid(row, flat), rel=1e-6) for row in parts)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.0, 1.0), st.sampled_from(sorted(KINDS)))
def test_prices_are_never_negative_and_a_token_more_never_a_gain(seed: int, noise: float, kind: str) -> None:
    parts, generator = rows(kind), torch.Generator().manual_seed(seed)
    clean = torch.tensor([paid(row, PRICES) for row in parts])
    found = fit_prices(parts, (clean * torch.exp(noise * torch.randn(len(parts), generator=generator))).tolist())
    assert min(found) >= 0

    def cost(counts: list[int]) -> float:
        return sum(paid(row, found) for row in rows("slice", [counts]))

    for counts, block in itertools.product(PROBES, range(3)):
        if counts[block] < (counts[block - 1] if block else 16):
            assert cost([*counts[:block], counts[block] + 1, *counts[block + 1 :]]) >= cost(counts)


def test_under_noise_prices_stay_near_those_of_macs() -> None:
    """Times scatter by half; without holding on to anything, a part would pay for another."""
    parts, errors = rows("slice"), []
    clean = torch.tensor([paid(row, [0.0, 2e-5, 2e-5, 2e-5, 0.0, 0.0, 0.0]) for row in parts])
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        times = clean * torch.exp(0.5 * torch.randn(len(parts), generator=generator))
        found = fit_prices(parts, times.tolist())
        scale = sum(times) / sum(clean)
        errors += [abs(found[part] / (2e-5 * scale) - 1) for part in (1, 2, 3)]
    assert sorted(errors)[len(errors) // 2] < 0.5
    assert max(errors) < 1


@given(st.floats(0.5, 2.0), st.floats(0.4, 2.5))
def test_two_whole_networks_tell_what_choosing_costs_there(factor: float, dearer: float) -> None:
    """One chooses in a block, one in three; of a network between them nobody told."""
    draft = CoverMethod(blocks=None).draft(INFO)
    blocks_say = LatencyCost(draft, (0.02, 1e-6, 1e-6, 1e-6, 0.0, 0.03, 1e-6), 0.05)
    few, between, many = (16, 8, 8, 0), (12, 8, 8, 0), (13, 10, 7, 0)

    def true(counts: tuple[int, ...]) -> float:
        rest, choosing = blocks_say.shares(counts)
        return factor * (rest + dearer * choosing)

    right = blocks_say.right_for_both((few, true(few)), (many, true(many)))
    assert right.share(between) == pytest.approx(true(between))
    in_proportion = blocks_say.right_for(many, true(many))
    if not 0.9 < dearer < 1.1:
        assert abs(in_proportion.share(few) / true(few) - 1) > abs(right.share(few) / true(few) - 1)


def test_what_choosing_costs_is_not_believed_to_be_quite_another() -> None:
    """As noise would have it, it is a gain; prices stay above zero, and right for the network that chooses least."""
    own = LatencyCost(CoverMethod(blocks=None).draft(INFO), (0.02, 1e-6, 1e-6, 1e-6, 0.0, 0.03, 1e-6), 0.05)
    for many in (0.3, 3.0):
        right = own.right_for_both(((16, 8, 8, 0), 0.8), ((13, 10, 7, 0), many))
        assert right.share((16, 8, 8, 0)) == pytest.approx(0.8)
        assert min(right.prices[part] for part in (0, 1, 2, 3, 5, 6)) > 0
