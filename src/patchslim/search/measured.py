"""A search that measures: counts per block, and drop or merge per block, by the error of the whole slim network.

Algorithm 1 looks one block ahead and can't see what merging or an image's own choice does to the blocks after it. Here
a candidate is built and run, and judged by what the head reads: ‖f̂ − f‖² / ‖f‖², averaged over the images.
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from patchslim.search.schedule import Counts, Draft, Drops, Error, Fit, concentrate, descend, improve, removing
from patchslim.slimmed import SlimBlock, slim_blocks
from patchslim.steps import Tokens

PROMISING = 1.2  # times the error that improving is expected to make up for

Known = tuple[Counts, Drops]
Block = Callable[[Any], Any]  # what enters → what leaves


class PrefixMemory:
    """The tokens that leave a block, of every batch, under the last prefixes that were run, within a bound.

    Candidates often agree in their first blocks. Where images choose or group for themselves, what leaves a block
    depends on the counts up to it and on no other.
    """

    def __init__(self, limit_bytes: float) -> None:
        self.limit_bytes, self.used = limit_bytes, 0
        # By the steps so far, and the patches that static ones keep.
        self.states = OrderedDict[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]], list[Any]]()

    def run(self, plan: SlimPlan, blocks: Sequence[Block], states: list[Any]) -> list[Any]:
        """What leaves the last block, of every batch; `states` enter the first."""
        steps = [repr(step) for step in plan.steps]
        kept = [] if plan.order is None else [tuple(own) for own in plan.kept]
        prefixes = [(tuple(steps[:layer]), tuple(kept[:layer])) for layer in range(1, len(blocks))]
        known = next((layer for layer in range(len(prefixes), 0, -1) if prefixes[layer - 1] in self.states), 0)
        if known:
            states = self.states[prefixes[known - 1]]
            self.states.move_to_end(prefixes[known - 1])
        for prefix, block in zip(prefixes[known:], blocks[known:], strict=False):
            states = [block(state) for state in states]
            self.states[prefix] = states
            self.used += _bytes(states)
            while self.used > self.limit_bytes and self.states:  # forget what was not asked for the longest
                _, oldest = self.states.popitem(last=False)
                self.used -= _bytes(oldest)
        return [blocks[-1](state) for state in states]


def _bytes(states: list[Any]) -> int:
    parts = [part for state in states for part in ([state] if isinstance(state, Tensor) else state)]
    return sum(part.nbytes for part in parts if isinstance(part, Tensor))


def sorting_blocks(plan: SlimPlan, blocks: Sequence[SlimBlock]) -> list[Block]:
    """A static plan's blocks that each put the patches first that stay, and leave them in the host's order.

    A slim model sorts once, by how long patches stay. But then what leaves a block is in an order, and is rounded in
    ways, that later counts decide.
    """
    assert blocks[0].entrance is not None
    blocks[0].entrance.order = None
    alive, found = list(range(plan.host.patches)), list[Block]()
    for block, kept in zip(blocks, plan.kept, strict=True):
        stay = set(kept)
        places = sorted(range(len(alive)), key=lambda place: alive[place] not in stay)  # stable
        found.append(block if places == sorted(places) else _after_sorting(block, places, plan.host.prefix_tokens))
        alive = kept
    return found


def _after_sorting(block: Block, places: list[int], prefix: int) -> Block:
    every = torch.tensor([*range(prefix), *(prefix + place for place in places)])

    def call(state: Any) -> Any:
        if not isinstance(state, Tokens):
            return block(state.index_select(1, every.to(state.device)))
        order = every.to(state.x.device)
        size = None if state.size is None else state.size.index_select(1, order)
        return block(Tokens(state.x.index_select(1, order), size))

    return call


@torch.no_grad()
def measure(
    host: Host, features: Features, plan: SlimPlan, parts: Mapping[int, nn.Module], memory: PrefixMemory | None = None
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
        pairs = ((_through(blocks, x), out) for x, out in features.batches(0, depth))
    errors = [relative_error(host.features(end), host.features(out)).double().cpu() for end, out in pairs]
    value = float(torch.cat(errors).mean())
    if not math.isfinite(value):
        raise PatchslimError("The error is not a finite number; the model's weights or the images are broken.")
    return value


def _through(blocks: Iterable[Block], state: Any) -> Any:
    """What leaves the last of some blocks."""
    for block in blocks:
        state = block(state)
    return state


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
        else:
            counts = self.within(tolerance)
            known = counts, self.choose_drops(counts)
            plan = self.draft.plan(*known)
        return plan, self.error(*known)

    def find(self, ratio: float) -> tuple[SlimPlan, Known]:
        """The best plan at a ratio: searched for all the way once, after that by scaling the same removals, unless that
        takes more blocks."""
        counts, drops = self.known or ((), ())
        blocks = len(removing(self.info.patches, counts))
        if self.known is not None:
            counts = self._fit(ratio)(self.schedule.removals(counts))
        if self.known is None or len(removing(self.info.patches, counts)) > blocks:
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
        known, fits, fit = self._cached(drops), self._fits(ratio), self._fit(ratio)

        def error(counts: Counts) -> float:
            """A move may leave no removals that fit; what does not fit is no candidate."""
            return known(counts) if fits(counts) else math.inf

        return self._fewer(self._better(counts, error, fit), error, fit)

    def _better(self, counts: Counts, error: Error, fit: Fit) -> Counts:
        """Blocks trade patches; where few may choose, those few do once more."""
        if len(removing(self.info.patches, counts)) > self.most:
            counts = self._concentrated(improve(self.schedule, error, fit, counts), error, fit)
        return improve(self.schedule, self._limited(error, self.most), fit, counts)

    def _fewer(self, counts: Counts, error: Error, fit: Fit) -> Counts:
        """One block fewer at the same budget, and again, while the error falls.

        What it costs to choose in a block then pays for patches: in time that is a lot, in MACs little.
        """
        while (most := len(removing(self.info.patches, counts)) - 1) > 0:
            try:
                trial = concentrate(self.schedule, error, fit, counts, most)
            except BudgetError:  # so few blocks can't remove enough
                break
            if error(trial) <= PROMISING * error(counts):
                trial = improve(self.schedule, self._limited(error, most), fit, trial)
            if error(trial) >= error(counts):
                break
            counts = trial
        return counts

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

    def _limited(self, error: Error, most: int) -> Error:
        """The same error, infinite where more blocks choose than may: one that can't remove enough leaves some to the
        next."""
        return lambda counts: error(counts) if len(removing(self.info.patches, counts)) <= most else math.inf

    def within(self, tolerance: float) -> Counts:
        """As little as keeps the error within the tolerance: down past it, back, better there, and on to it again."""
        error = self._cached()
        counts = descend(self.schedule, error, self.cost.of, lambda counts: error(counts) > tolerance)
        counts = self._scaled(counts, error, tolerance)
        counts = self._better(counts, error, self._fit(self.cost.of(counts) / host_macs(self.info)))
        return self._scaled(counts, self._limited(error, self.most), tolerance)

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
