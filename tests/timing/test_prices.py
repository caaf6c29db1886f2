"""Prices of a block's parts: a closed form is found again, noise is held in check, and no token is ever a gain."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from patchslim.macs import block_macs, host_macs
from patchslim.plan import PredictorSpec
from patchslim.search.cost import MacCost
from patchslim.search.prices import PARTS, LatencyCost, blocks_of, fit_prices, parts_of
from patchslim.slim.predictor import hidden_width
from small import make_host

INFO = ps.inspect(make_host())
DROP = MacCost(INFO)
PROBES = [[16, 16, 16, 0], [13, 10, 7, 0], [8, 8, 8, 0], [15, 9, 3, 0], [6, 5, 2, 0], [16, 8, 1, 0]]
PRICES = [0.2, 3e-5, 2e-5, 5e-5, 0.0, 0.0, 0.0]  # of being called, keys and values, the rest, attention


def kinds() -> dict[str, MacCost]:
    """Every kind of plan."""
    spec = PredictorSpec(kind="context", hidden=hidden_width(INFO, "context"), weights="")
    return {
        "drop": DROP,
        "carry": MacCost(INFO, "carry"),
        "static merge": MacCost(INFO, "merge", groups="own"),
        "fixed groups": MacCost(INFO, "merge", groups="fixed"),
        "matched": MacCost(INFO, "merge", "matched"),
        "predicted": MacCost(INFO, "drop", "predicted", spec),
    }


def rows(kind: MacCost, counts: list[list[int]]) -> list[list[float]]:
    return [parts_of(kind, block) for own in counts for block in blocks_of(kind, own)]


def paid(parts: list[float], prices: list[float]) -> float:
    return sum(price * part for price, part in zip(prices, parts, strict=True))


@pytest.mark.parametrize("kind", kinds())
def test_the_macs_of_the_parts_are_those_of_the_block(kind: str) -> None:
    own = kinds()[kind]
    for counts in PROBES:
        total = float(INFO.embed_macs + INFO.head_macs)
        for block in blocks_of(own, counts):
            parts, (layer, n_in, n) = parts_of(own, block), block
            assert sum(parts[1:4]) == block_macs(INFO.blocks[layer - 1], n_in, n)
            assert len(parts) == PARTS
            total += sum(parts[1:4]) + parts[6]
        assert total == own.of(counts)


def test_a_block_that_is_the_sum_of_its_parts_is_found_again() -> None:
    parts = rows(DROP, PROBES)
    found = fit_prices(parts, [paid(row, PRICES) for row in parts])
    for counts in itertools.product(range(0, 17, 4), repeat=3):
        for row in rows(DROP, [[*sorted(counts, reverse=True), 0]]):
            assert paid(row, found) == pytest.approx(paid(row, PRICES), rel=1e-6)


@pytest.mark.parametrize("kind", kinds())
def test_times_in_proportion_to_macs_give_macs(kind: str) -> None:
    own = kinds()[kind]
    parts = rows(own, PROBES)
    flat = [0.0, 1e-5, 1e-5, 1e-5, 0.0, 0.0, 1e-5]
    found = fit_prices(parts, [paid(row, flat) for row in parts])
    assert all(paid(row, found) == pytest.approx(paid(row, flat), rel=1e-6) for row in parts)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.0, 1.0), st.sampled_from(sorted(kinds())))
def test_prices_are_never_negative_and_a_token_more_never_a_gain(seed: int, noise: float, kind: str) -> None:
    own, generator = kinds()[kind], torch.Generator().manual_seed(seed)
    parts = rows(own, PROBES)
    clean = torch.tensor([paid(row, PRICES) for row in parts])
    times = clean * torch.exp(noise * torch.randn(len(parts), generator=generator))
    found = fit_prices(parts, times.tolist())
    assert min(found) >= 0
    cost = LatencyCost(MacCost(INFO), tuple(found))
    for counts in PROBES:
        for block in range(3):
            above = counts[block - 1] if block else 16
            if counts[block] < above:
                more = [*counts[:block], counts[block] + 1, *counts[block + 1 :]]
                assert cost.of(more) >= cost.of(counts)


def test_under_noise_prices_stay_near_those_of_macs() -> None:
    """Times scatter by half; without holding on to anything, a part would pay for another."""
    parts, errors = rows(DROP, PROBES), []
    even = [0.0, 2e-5, 2e-5, 2e-5, 0.0, 0.0, 0.0]
    clean = torch.tensor([paid(row, even) for row in parts])
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        times = clean * torch.exp(0.5 * torch.randn(len(parts), generator=generator))
        found = fit_prices(parts, times.tolist())
        scale = sum(times) / sum(clean)
        errors += [abs(found[part] / (2e-5 * scale) - 1) for part in (1, 2, 3)]
    assert sorted(errors)[len(errors) // 2] < 0.5
    assert max(errors) < 1


def test_a_network_makes_it_right() -> None:
    rough = LatencyCost(DROP, tuple(PRICES), fixed=0.3)
    fine = rough.right_for([10, 8, 6, 0], 0.55)
    assert fine.share([10, 8, 6, 0]) == pytest.approx(0.55)
    for counts in PROBES:
        ratio = rough.share(counts) / rough.share([10, 8, 6, 0])
        assert fine.share(counts) == pytest.approx(0.55 * ratio)
        assert fine.of(counts) == pytest.approx(0.55 * ratio * host_macs(INFO))
