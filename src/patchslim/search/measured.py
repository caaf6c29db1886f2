"""A search that measures: counts per block, and drop or merge per block, by the error of the whole slim network.

Algorithm 1 looks one block ahead and can't see what merging or an image's own choice does to the blocks after it. Here
a candidate is built and run, and judged by what the head reads: ‖f̂ − f‖² / ‖f‖², averaged over the images.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.cache import Cache
from patchslim.errors import BudgetError, PatchslimError
from patchslim.events import Listener
from patchslim.evidence.features import Features
from patchslim.evidence.network import relative_error
from patchslim.hosts import Host
from patchslim.macs import host_macs
from patchslim.plan import SlimPlan
from patchslim.search.cost import Budget
from patchslim.search.prefix import PrefixMemory, sorting_blocks
from patchslim.search.schedule import Counts, Draft, Drops, Error, Fit, concentrate, descend, improve, removing
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
    pairs: Iterable[tuple[Any, Tensor]]  # what leaves the last block, and what leaves the host's
    if memory is not None and features.keeps_all and plan.per_image:
        ends = memory.run(plan, blocks, [x for (x,) in features.batches(0)])
        pairs = zip(ends, (out for (out,) in features.batches(depth)), strict=True)
    else:
        whole = functools.partial(functools.reduce, lambda state, block: block(state), blocks)
        pairs = ((whole(x), out) for x, out in features.batches(0, depth))
    errors = [relative_error(host.features(end), host.features(out)).double().cpu() for end, out in pairs]
    value = float(torch.cat(errors).mean())
    if not math.isfinite(value):
        raise PatchslimError("The error is not a finite number; the model's weights or the images are broken.")
    return value


@dataclass
class Measured:
    """Tries plans of one kind on one host, remembering every error."""

    host: Host
    features: Features
    cache: Cache
    listen: Listener
    draft: Draft
    budget: Budget
    parts: Mapping[int, nn.Module]

    def __post_init__(self) -> None:
        self.info, self.cost = self.host.info, self.budget.cost
        self.schedule = self.draft.schedule(self.cost.multiple)
        self.memory = PrefixMemory(self.features.limit_bytes)
        self.tried, self.best = 0, math.inf
        self.most = self.draft.most or self.info.depth  # blocks that may remove patches
        self.known: Known | None = None  # what `find` gave first

    def search(self, tolerance: float | None) -> tuple[SlimPlan, float]:
        """The best plan found within the budget, or within the tolerance, and its error."""
        if tolerance is None:
            plan, known = self.budget.meet(self.find)
            return plan, self.error(*known)
        counts = self.within(tolerance)
        drops = self.choose_drops(counts)
        return self.draft.plan(counts, drops), self.error(counts, drops)

    def find(self, ratio: float) -> tuple[SlimPlan, Known]:
        """The best plan at a ratio: searched for all the way once, after that by scaling the same removals."""
        if self.known is not None:
            counts, drops = self.known
            counts = self._fit(ratio)(self.schedule.removals(counts))
        else:
            counts = self.at_ratio(ratio)
            drops = self.choose_drops(counts)
            if drops:  # then other counts may do better
                counts = self._improved(ratio, counts, drops)
            self.known = counts, drops
        return self.draft.plan(counts, drops), (counts, drops)

    def error(self, counts: Counts, drops: Drops = ()) -> float:
        """Measured once, then remembered."""

        def measured() -> dict[str, Any]:
            plan = self.draft.plan(counts, drops)
            return {"error": measure(self.host, self.features, plan, self.parts, self.memory)}

        value = float(self.cache.once(("error", counts, drops), measured)["error"])
        self.tried, self.best = self.tried + 1, min(self.best, value)
        known = {"patches": counts, "drops": drops, "error": value, "best": self.best}
        self.listen({"event": "candidate", "number": self.tried} | known)
        return value

    def at_ratio(self, ratio: float) -> Counts:
        """Down to the ratio where it costs least, then better ways to spend the same."""
        counts = descend(self.schedule, self._cached(), self.cost.of, self._fits(ratio))
        return self._improved(ratio, self._fit(ratio)(self.schedule.removals(counts)))

    def _improved(self, ratio: float, counts: Counts, drops: Drops = ()) -> Counts:
        """Better counts at the same ratio, while some blocks drop."""
        error, fits = self._cached(drops), self._fits(ratio)
        # A move may leave no removals that fit; what does not fit is no candidate.
        return self._better(counts, lambda counts: error(counts) if fits(counts) else math.inf, self._fit(ratio))

    def _better(self, counts: Counts, error: Error, fit: Fit) -> Counts:
        """Blocks trade patches; where few may choose, those few do once more."""
        if len(removing(self.info.patches, counts)) > self.most:
            counts = self._concentrated(improve(self.schedule, error, fit, counts), error, fit)
        return improve(self.schedule, self._limited(error), fit, counts)

    def _concentrated(self, counts: Counts, error: Error, fit: Fit) -> Counts:
        """Counts that remove patches in as few blocks as was asked for, or in as few as can remove enough."""
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
        return lambda counts: error(counts) if len(removing(self.info.patches, counts)) <= self.most else math.inf

    def within(self, tolerance: float) -> Counts:
        """As little as keeps the error within the tolerance: down past it, back, better there, and on to it again."""
        error = self._cached()
        counts = descend(self.schedule, error, self.cost.of, lambda counts: error(counts) > tolerance)
        counts = self._scaled(counts, error, tolerance)
        counts = self._better(counts, error, self._fit(self.cost.of(counts) / host_macs(self.info)))
        return self._scaled(counts, self._limited(error), tolerance)

    def choose_drops(self, counts: Counts) -> Drops:
        """The blocks that do better to drop than to merge, the last ones tried first."""
        if not self.draft.merges:
            return ()
        drops: Drops = ()
        error = self.error(counts)
        for layer in sorted(removing(self.info.patches, counts), reverse=True):
            trial = tuple(sorted({*drops, layer}))
            if (other := self.error(counts, trial)) < error:
                drops, error = trial, other
        return drops

    def _cached(self, drops: Drops = ()) -> Error:
        """Errors of one descent: the cache remembers across runs, this spares the listener repeats."""
        return functools.cache(lambda counts: self.error(counts, drops))

    def _fits(self, ratio: float) -> Callable[[Counts], bool]:
        """Whether counts stay within a share of the host's cost."""
        limit = ratio * host_macs(self.info)
        return lambda counts: self.cost.of(counts) <= limit

    def _fit(self, ratio: float) -> Fit:
        return lambda removals: self.schedule.fit(removals, self._fits(ratio))

    def _scaled(self, counts: Counts, error: Error, tolerance: float) -> Counts:
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
