"""MAC ratios: what can be reached is reached closely, what can't is told."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from patchslim.macs import host_macs, macs_of_counts
from patchslim.search.budget import reachable, spend_rest
from patchslim.search.cost import MacCost
from small import make_host, make_images


def algorithm_1(**settings: Any) -> ps.SearchConfig:
    """The paper's search, without tuning."""
    return ps.SearchConfig(score="impact", tune_epochs=0, **settings)


@pytest.mark.parametrize("removed", ["drop", "carry"])
@pytest.mark.parametrize("kind", ["class", "mean", "attention pool"])
def test_the_ratio_is_met_from_below(kind: str, removed: Any) -> None:
    model, images = make_host(kind), make_images(4)
    info = ps.inspect(model)
    low, high = reachable(info, ps.SearchConfig(removed=removed))
    patch = macs_of_counts(info, [16, 16, 16, 16], removed) / host_macs(info) / 4 / 16
    for target in (low + 0.02, 0.5 * (low + high), high - 0.02):
        plan, _ = ps.search(model, images, algorithm_1(target_macs=target, removed=removed, step=2))
        ratio = ps.count_macs(model, plan) / ps.count_macs(model)
        assert ratio == plan.provenance["macs_ratio"]
        assert target - 2 * patch < ratio <= target


def test_a_generous_ratio_keeps_all_that_matters() -> None:
    model = make_host()
    plan, _ = ps.search(model, make_images(2), algorithm_1(target_macs=0.99))
    assert plan.counts == (16, 16, 16, 0)


def test_an_unreachable_ratio_says_what_can_be_reached() -> None:
    model = make_host()
    low, high = reachable(ps.inspect(model), ps.SearchConfig(removed="drop"))
    with pytest.raises(ps.BudgetError, match=f"{low:.3f} to {high:.3f}"):
        ps.search(model, make_images(2), algorithm_1(target_macs=low - 0.01))


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 16), min_size=3, max_size=3).map(lambda c: sorted(c, reverse=True)),
    errors=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    slack=st.floats(0, 0.2),
    removed=st.sampled_from(["drop", "carry"]),
)
def test_spending_the_rest_stays_nested_within_budget_and_spends_it(
    counts: list[int], errors: list[float], slack: float, removed: Any
) -> None:
    info = ps.inspect(make_host())
    before = {1: counts[0], 2: counts[1], 3: counts[2], 4: 0}
    used = macs_of_counts(info, [*counts, 0], removed) / host_macs(info)
    target = used + slack + 1e-9
    filled = spend_rest(info, MacCost(info, removed), before, dict(zip((1, 2, 3), errors, strict=True)), target)
    values = [filled[layer] for layer in (1, 2, 3, 4)]
    assert values == sorted(values, reverse=True)
    assert all(filled[layer] >= before[layer] for layer in before)
    assert filled[4] == 0
    budget = int(target * host_macs(info))
    assert macs_of_counts(info, values, removed) <= budget
    for layer in (1, 2, 3):  # nothing more fits
        more = filled | {layer: filled[layer] + 1}
        fits = macs_of_counts(info, [more[k] for k in (1, 2, 3, 4)], removed) <= budget
        nested = more[layer] <= (filled[layer - 1] if layer > 1 else 16)
        assert not (fits and nested)
