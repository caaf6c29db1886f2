"""From a MAC ratio to patches per block: bisect the tolerance, then spend what is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchslim.errors import BudgetError
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs, macs_of_counts
from patchslim.plan import PredictorKind, PredictorSpec, Removed, Select
from patchslim.search.network import Partial
from patchslim.search.schedule import Slots
from patchslim.search.topdown import OverBudget, TopDown
from patchslim.slim.predictor import hidden_width

CLOSE = 0.01  # a plan within this of the asked ratio needs no finer tolerance
FIRST_GUESS, STRIDE, FINEST, LEAST = -1.5, 0.6, 0.02, -12.0  # of log10 ε


def reachable(
    info: HostInfo, removed: Removed, select: Select = "static", predictor: PredictorKind = "context"
) -> tuple[float, float]:
    """The least and the largest MAC ratio a plan can have."""
    pairs = select == "matched" or removed == "merge"
    if pairs or select == "predicted":
        least = Slots(info, halves=pairs).least
    else:
        least = (1 if info.reads_patches else 0,) * info.depth
    most = (info.patches,) * (info.depth - 1) + (info.patches if info.reads_patches else 0,)
    spec = (
        PredictorSpec(kind=predictor, hidden=hidden_width(info, predictor), weights="")
        if select == "predicted"
        else None
    )
    choice: dict[str, Any] = {"select": select, "predictor": spec}
    low, high = (macs_of_counts(info, counts, removed, **choice) / host_macs(info) for counts in (least, most))
    return low, high


def check_reachable(
    info: HostInfo, removed: Removed, target: float, select: Select = "static", predictor: PredictorKind = "context"
) -> None:
    """Raise BudgetError, saying what can be reached, when the ratio can't."""
    low, high = reachable(info, removed, select, predictor)
    if target < low:
        raise BudgetError(
            f"A MAC ratio of {target:g} can't be reached on {info.name} with {select} patches and removed set to "
            f"{removed}; anything from {low:.3f} to {high:.3f} can."
        )


def bisect_tolerance(search: TopDown, target: float) -> tuple[float, Partial]:
    """The smallest tolerance found whose plan meets the ratio, and that plan. No tuning on the way.

    MACs fall as the tolerance grows. A run over budget stops early and only tells that the tolerance is too small.
    """
    info, removed = search.host.info, search.config.removed
    budget = int(target * host_macs(info))
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
            ratio = search.least_macs(partial, 1) / host_macs(info)
            search.listen({"event": "ratio", "tolerance": 10**guess, "macs_ratio": ratio})
            if ratio >= min(target, reachable(info, removed)[1]) - CLOSE:
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
    info: HostInfo, removed: Removed, counts: Mapping[int, int], errors: Mapping[int, float], target: float
) -> dict[int, int]:
    """Give what the budget has left to the blocks with the largest error, a patch at a time, keeping the nesting."""
    budget = int(target * host_macs(info))
    filled = dict(counts)
    blocks = sorted(errors, key=lambda layer: (-errors[layer], layer))
    grew = True
    while grew:
        grew = False
        for layer in blocks:
            above = filled[layer - 1] if layer > 1 else info.patches
            more = filled | {layer: filled[layer] + 1}
            if filled[layer] < above and _macs(info, more, removed) <= budget:
                filled, grew = more, True
    return filled


def _macs(info: HostInfo, counts: Mapping[int, int], removed: Removed) -> int:
    return macs_of_counts(info, [counts[layer] for layer in range(1, info.depth + 1)], removed)
