"""MAC ratios with Algorithm 1: what can be reached is reached closely, and what is left is spent."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patchslim as ps
from patchslim.macs import host_macs, steps_macs
from patchslim.methods import PS, Task
from patchslim.plan import static_steps
from patchslim.search import Target
from patchslim.search.cost import MacCost
from patchslim.search.topdown import CLOSE, FINEST, bisect_tolerance, spend_rest
from small import make_host, make_images


def macs(info: ps.HostInfo, counts: list[int], carry: bool) -> int:
    return steps_macs(info, static_steps(info, counts, "carry" if carry else "slice"))


def limits(info: ps.HostInfo, carry: bool) -> tuple[float, float]:
    """The least and the largest ratio, from plans that have them."""
    last = int(info.reads_patches)
    return macs(info, [last] * 4, carry) / host_macs(info), macs(info, [16, 16, 16, 16 * last], carry) / host_macs(info)


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("kind", ["class", "mean", "attention pool"])
def test_the_ratio_is_met_from_below_and_closely(kind: str, carry: bool) -> None:
    model, info = make_host(kind), ps.inspect(make_host(kind))
    low, high = limits(info, carry)
    patch = macs(info, [16] * 4, carry) / host_macs(info) / 4 / 16
    for target in (low + 0.02, 0.5 * (low + high), high - 0.02):
        slim: Any = ps.slim(model, make_images(4), PS(step=2, tune_epochs=0, carry=carry), macs=target)
        ratio = ps.count_macs(slim) / ps.count_macs(model)
        assert (
            ratio == slim.plan.provenance["macs_ratio"] == macs(info, list(slim.plan.counts), carry) / host_macs(info)
        )
        assert target - 2 * patch < ratio <= target
    with pytest.raises(ps.BudgetError, match=f"by ps; anything from {low:.3f} to {high:.3f} can"):
        ps.slim(model, make_images(2), PS(tune_epochs=0, carry=carry), macs=low - 0.01)


def test_the_tolerance_is_as_small_as_the_ratio_allows() -> None:
    """A slightly smaller one keeps more than the ratio, or the plan is close to the ratio already."""
    for target in (0.35, 0.5, 0.65, 0.8):
        task = Task.of(make_host(), make_images(4), Target(macs=target))
        search = PS(step=2, tune_epochs=0).algorithm(task, task.limit(PS().draft(task.info)))
        tolerance, partial = bisect_tolerance(search, target)
        found, smaller = (
            search.cost.of([own.counts[layer] for layer in (1, 2, 3, 4)]) / host_macs(task.info)
            for own in (partial, search.search(tolerance * 10**-FINEST, tune=False))
        )
        assert found <= target
        assert found >= target - CLOSE or smaller > target
        assert search.search(tolerance, tune=False).counts == partial.counts


def test_a_generous_ratio_keeps_all_that_is_read() -> None:
    slim: Any = ps.slim(make_host(), make_images(2), PS(tune_epochs=0), macs=0.99)
    assert slim.plan.counts == (16, 16, 16, 0)


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 16), min_size=3, max_size=3).map(lambda c: sorted(c, reverse=True)),
    errors=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    slack=st.floats(0, 0.2),
    carry=st.booleans(),
)
def test_spending_the_rest_stays_nested_within_budget_and_spends_it(
    counts: list[int], errors: list[float], slack: float, carry: bool
) -> None:
    info = ps.inspect(make_host())
    before = {1: counts[0], 2: counts[1], 3: counts[2], 4: 0}
    target = macs(info, [*counts, 0], carry) / host_macs(info) + slack + 1e-9
    cost = MacCost(PS(carry=carry).draft(info))
    filled = spend_rest(info, cost, before, dict(zip((1, 2, 3), errors, strict=True)), target)
    values = [filled[layer] for layer in (1, 2, 3, 4)]
    assert values == sorted(values, reverse=True)
    assert all(filled[layer] >= before[layer] for layer in before)
    assert filled[4] == 0
    assert macs(info, values, carry) <= target * host_macs(info)
    for (above, own), layer in zip(itertools.pairwise([16, *values]), (0, 1, 2), strict=False):  # nothing more fits
        more = [*values[:layer], own + 1, *values[layer + 1 :]]
        assert own == above or macs(info, more, carry) > target * host_macs(info)


def test_the_block_with_the_largest_error_is_given_first() -> None:
    info = ps.inspect(make_host())
    cost = MacCost(PS().draft(info))
    for worst in (1, 2, 3):
        errors = {layer: float(layer == worst) for layer in (1, 2, 3)}
        before = {1: 12, 2: 8, 3: 4, 4: 0}
        one_more = [before[layer] + (layer == worst) for layer in (1, 2, 3, 4)]
        filled = spend_rest(info, cost, before, errors, cost.of(one_more) / host_macs(info) + 1e-9)
        assert [filled[layer] for layer in (1, 2, 3, 4)] == one_more
