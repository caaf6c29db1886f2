"""Costs: MACs as plans have them, and time in the host's MACs."""

import pytest

import patchslim as ps
from patchslim.macs import count_macs, host_macs
from patchslim.methods import PS, Cover, Drop, Merge, Predict
from patchslim.search import Draft
from patchslim.search.cost import LatencyCost, MacCost
from small import make_host

HOST = make_host()
INFO = ps.inspect(HOST)
DRAFTS: dict[str, Draft] = {
    "drop": Drop().draft(INFO),
    "carry": PS(carry=True).draft(INFO),
    "cover": Cover().draft(INFO),
    "merge": Merge().draft(INFO),
    "predict": Predict().draft(INFO),
}
PROBES = [(16, 16, 16, 0), (13, 10, 7, 0), (8, 8, 8, 0), (14, 8, 4, 0), (16, 8, 8, 0)]
PRICES = (0.2, 3e-5, 2e-5, 5e-5, 0.0, 0.0, 0.0)  # of being called, keys and values, the rest, attention


@pytest.mark.parametrize("kind", DRAFTS)
def test_macs_are_those_of_the_plan_with_these_counts(kind: str) -> None:
    cost = MacCost(DRAFTS[kind])
    for counts in (*PROBES, *PROBES):  # the second time from memory
        assert cost.of(counts) == count_macs(HOST, DRAFTS[kind].sketch(counts))


def test_a_network_that_was_timed_makes_prices_right() -> None:
    rough = LatencyCost(DRAFTS["drop"], PRICES, fixed=0.3)
    fine = rough.right_for((10, 8, 6, 0), 0.55)
    assert fine.share((10, 8, 6, 0)) == pytest.approx(0.55)
    for counts in PROBES:
        share = 0.55 * rough.share(counts) / rough.share((10, 8, 6, 0))
        assert fine.share(counts) == pytest.approx(share)
        assert fine.of(counts) == pytest.approx(share * host_macs(INFO))


def test_time_is_the_fixed_part_and_the_price_of_every_block() -> None:
    """A block of n_in tokens that computes n: keys and values, queries with projection and MLP, attention."""
    cost, total, tokens = LatencyCost(DRAFTS["drop"], PRICES, fixed=0.3), 0.3, 17
    for n in (14, 11, 8, 1):
        total += 0.2 + 3e-5 * 2 * tokens * 24**2 + 2e-5 * (2 * n * 24**2 + n * 2 * 24 * 48) + 5e-5 * 2 * n * tokens * 24
        tokens = n
    assert cost.share((13, 10, 7, 0)) == pytest.approx(total)
