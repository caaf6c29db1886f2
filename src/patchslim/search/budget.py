"""From a budget to patches per block with Algorithm 1: bisect the tolerance, then spend what is left."""

from __future__ import annotations

from collections.abc import Mapping

from patchslim.evidence.network import Partial
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs
from patchslim.search.cost import Cost
from patchslim.search.schedule import Schedule, make_divisible
from patchslim.search.topdown import OverBudget, TopDown

CLOSE = 0.01  # a plan within this of the asked ratio needs no finer tolerance
FIRST_GUESS, STRIDE, FINEST, LEAST = -1.5, 0.6, 0.02, -12.0  # of log10 ε


def bisect_tolerance(search: TopDown, target: float) -> tuple[float, Partial]:
    """The smallest tolerance found whose plan meets the ratio, and that plan. No tuning on the way.

    The cost falls as the tolerance grows. A run over budget stops early and only tells that the tolerance is too small.
    """
    info = search.host.info
    budget, most = target * host_macs(info), search.cost.of(Schedule(info).everything) / host_macs(info)
    too_small: float | None = None
    found: tuple[float, Partial] | None = None
    guess = FIRST_GUESS
    while True:
        search.listen({"event": "tolerance", "tolerance": 10**guess})
        try:
            partial = search.search(10**guess, tune=False, budget=budget)
        except OverBudget:
            too_small = guess
        else:
            found = guess, partial
            ratio = search.least_cost(partial, 1) / host_macs(info)
            search.listen({"event": "ratio", "tolerance": 10**guess, "macs_ratio": ratio})
            if ratio >= min(target, most) - CLOSE:
                break
        if found is None:
            guess += STRIDE
        elif too_small is None:
            if guess < LEAST:  # errors of zero at every count: a smaller tolerance changes nothing
                break
            guess -= STRIDE
        elif found[0] - too_small < FINEST:
            break
        else:
            guess = (too_small + found[0]) / 2
    return 10 ** found[0], found[1]


def spend_rest(
    info: HostInfo, cost: Cost, counts: Mapping[int, int], errors: Mapping[int, float], target: float
) -> dict[int, int]:
    """Give what the budget has left to the blocks with the largest error, a patch at a time (or as many as the device
    likes), keeping the nesting."""
    budget = target * host_macs(info)
    filled = dict(counts)
    blocks = sorted(errors, key=lambda layer: (-errors[layer], layer))
    grew = True
    while grew:
        grew = False
        for layer in blocks:
            above = filled[layer - 1] if layer > 1 else info.patches
            more = filled | {layer: make_divisible(info, cost.multiple, filled[layer] + 1)}
            price = cost.of([more[layer] for layer in range(1, info.depth + 1)])
            if more[layer] <= above and filled[layer] < above and price <= budget:
                filled, grew = more, True
    return filled
