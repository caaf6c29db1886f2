"""A search that measures: counts per block, and drop or merge per block, by the error of the whole slim network.

Algorithm 1 looks one block ahead and can't see what merging or an image's own choice does to the blocks after it. Here
a candidate is built and run, and judged by what the head reads: ‖f̂ − f‖² / ‖f‖², averaged over the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from patchslim.cache import Cache
from patchslim.errors import BudgetError, PatchslimError
from patchslim.events import Listener
from patchslim.evidence.features import Features
from patchslim.evidence.network import relative_error
from patchslim.hosts import Host
from patchslim.macs import host_macs
from patchslim.plan import SlimPlan
from patchslim.search.cost import Budget
from patchslim.search.draft import Draft, Drops
from patchslim.search.prefix import Block, PrefixMemory, sorting_blocks
from patchslim.search.schedule import Counts, Error, Fit, concentrate, descend, improve, removing
from patchslim.slim import slim_blocks

Known = tuple[Counts, Drops]


@torch.no_grad()
def measure(
    host: Host,
    features: Features,
    plan: SlimPlan,
    parts: Mapping[int, nn.Module],
    memory: PrefixMemory | None = None,
) -> float:
    """The readout's relative error under a plan, averaged over the images."""
    depth = host.info.depth
    features.focus((0, depth))
    blocks: Any = slim_blocks(host, plan, parts)
    if plan.order is not None and plan.per_image:
        blocks = sorting_blocks(plan, blocks)
    errors = []
    if memory is None or not features.keeps_all or not plan.per_image:
        for x, out in features.batches(0, depth):
            errors.append(relative_error(host.features(_through(blocks, x)), host.features(out)))
    else:
        states = memory.run(plan, blocks, lambda: [x for (x,) in features.batches(0)])
        for state, (out,) in zip(states, features.batches(depth), strict=True):
            errors.append(relative_error(host.features(state), host.features(out)))
    value = float(torch.cat([error.double().cpu() for error in errors]).mean())
    if not math.isfinite(value):
        raise PatchslimError("The error is not a finite number; the model's weights or the images are broken.")
    return value


def _through(blocks: Sequence[Block], state: Any) -> Any:
    """What leaves the last of some blocks."""
    for block in blocks:
        state = block(state)
    return state


class Measured:
    """Tries plans of one kind on one host, remembering every error."""

    def __init__(
        self,
        host: Host,
        features: Features,
        cache: Cache,
        listen: Listener,
        draft: Draft,
        budget: Budget,
        parts: Mapping[int, nn.Module] | None = None,
    ) -> None:
        self.host, self.info, self.features = host, host.info, features
        self.cache, self.listen, self.draft = cache, listen, draft
        self.budget, self.parts = budget, parts or {}
        self.cost = budget.cost
        self.schedule = draft.schedule(self.cost.multiple)
        self.memory = PrefixMemory(features.limit_bytes)
        self.tried, self.best, self.most = 0, math.inf, draft.most

    def search(self, tolerance: float | None) -> tuple[SlimPlan, float]:
        """The best plan found within the budget, or within the tolerance, and its error."""
        if tolerance is None:
            plan, (counts, drops) = self.budget.meet(self._find())
            return plan, self.error(counts, drops)
        counts = self.within(tolerance)
        drops = self._drops(counts)
        return self.draft.plan(counts, drops), self.error(counts, drops)

    def _find(self) -> Callable[[float], tuple[SlimPlan, Known]]:
        """A search that goes all the way once; after that it only scales the same removals."""
        known: list[Known] = []

        def find(ratio: float) -> tuple[SlimPlan, Known]:
            if known:
                counts, drops = known[0]
                counts = self._fit(ratio)(self.schedule.removals(counts))
            else:
                counts = self.at_ratio(ratio)
                drops = self._drops(counts)
                if drops:  # then other counts may do better
                    counts = self._improved(ratio, counts, drops)
            known.append((counts, drops))
            return self.draft.plan(counts, drops), (counts, drops)

        return find

    def error(self, counts: Counts, drops: Drops = ()) -> float:
        """Measured once, then remembered."""
        key = ("error", counts, drops)
        entry = self.cache.get(key)
        if entry is None:
            plan = self.draft.plan(counts, drops)
            entry = {"error": measure(self.host, self.features, plan, self.parts, self.memory)}
            self.cache.put(key, entry)
        value = float(entry["error"])
        self.tried, self.best = self.tried + 1, min(self.best, value)
        known = {"patches": counts, "drops": drops, "error": value, "best": self.best}
        self.listen({"event": "candidate", "number": self.tried} | known)
        return value

    def at_ratio(self, ratio: float) -> Counts:
        """Down to the ratio where it costs least, then better ways to spend the same."""
        error, budget = self._cached(), ratio * host_macs(self.info)
        counts = descend(self.schedule, error, self.cost.of, lambda counts: self.cost.of(counts) <= budget)
        return self._improved(ratio, self._fit(ratio)(self.schedule.removals(counts)))

    def _improved(self, ratio: float, counts: Counts, drops: Drops = ()) -> Counts:
        """Better counts at the same ratio, while some blocks drop."""
        error, budget = self._cached(drops), ratio * host_macs(self.info)

        def inside(counts: Counts) -> float:
            """A move may leave no removals that fit; what does not fit is no candidate."""
            return error(counts) if self.cost.of(counts) <= budget else math.inf

        return self._better(counts, inside, self._fit(ratio))

    def _better(self, counts: Counts, error: Error, fit: Fit) -> Counts:
        """Blocks trade patches; where few may choose, those few do once more."""
        if self.most is None:
            return improve(self.schedule, error, fit, counts)
        if len(removing(self.info.patches, counts)) > self.most:
            counts = self._concentrated(improve(self.schedule, error, fit, counts), error, fit)
        return improve(self.schedule, self._limited(error), fit, counts)

    def _concentrated(self, counts: Counts, error: Error, fit: Fit) -> Counts:
        """Counts that remove patches in as few blocks as was asked for, or in as few as can remove enough."""
        assert self.most is not None
        while True:
            try:
                return concentrate(self.schedule, error, fit, counts, self.most)
            except BudgetError:
                if self.most >= len(removing(self.info.patches, counts)):
                    raise
                self.most += 1
                self.listen({"event": "blocks", "blocks": self.most})

    def _limited(self, error: Error) -> Error:
        """The same error, infinite where more blocks choose than may: one that can't remove enough leaves some to the
        next."""
        most = self.info.depth if self.most is None else self.most
        return lambda counts: error(counts) if len(removing(self.info.patches, counts)) <= most else math.inf

    def within(self, tolerance: float) -> Counts:
        """As little as keeps the error within the tolerance: down past it, back, better there, and on to it again."""
        error = self._cached()
        counts = descend(self.schedule, error, self.cost.of, lambda counts: error(counts) > tolerance)
        counts = self._scaled(counts, error, tolerance)
        counts = self._better(counts, error, self._fit(self.cost.of(counts) / host_macs(self.info)))
        return self._scaled(counts, self._limited(error), tolerance)

    def _drops(self, counts: Counts) -> Drops:
        return self.choose_drops(counts) if self.draft.merges else ()

    def choose_drops(self, counts: Counts) -> Drops:
        """The blocks that do better to drop than to merge, the last ones tried first."""
        drops: Drops = ()
        error = self.error(counts)
        for layer in sorted(removing(self.info.patches, counts), reverse=True):
            trial = tuple(sorted({*drops, layer}))
            if (other := self.error(counts, trial)) < error:
                drops, error = trial, other
        return drops

    def _cached(self, drops: Drops = ()) -> Callable[[Counts], float]:
        """Errors of one descent: the cache remembers across runs, this spares the listener repeats."""
        known: dict[Counts, float] = {}

        def error(counts: Counts) -> float:
            if counts not in known:
                known[counts] = self.error(counts, drops)
            return known[counts]

        return error

    def _fit(self, ratio: float) -> Fit:
        budget = ratio * host_macs(self.info)
        return lambda removals: self.schedule.fit(removals, lambda counts: self.cost.of(counts) <= budget)

    def _scaled(self, counts: Counts, error: Callable[[Counts], float], tolerance: float) -> Counts:
        """The same removals, scaled as far as the tolerance allows, to a patch."""
        removals = self.schedule.removals(counts)
        low, high = 0.0, 2.0
        while high < 64 and error(self.schedule.counts(removals, high)) <= tolerance:
            low, high = high, 2 * high
        while (high - low) * max(removals, default=0.0) > 1:
            middle = (low + high) / 2
            within = error(self.schedule.counts(removals, middle)) <= tolerance
            low, high = (middle, high) if within else (low, middle)
        return self.schedule.counts(removals, low)
