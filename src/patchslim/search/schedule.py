"""What a search varies: how many patches each block keeps, and plans of one kind drafted from that. Counts come down
from nothing removed to a budget, and are then improved move by move at that budget."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import torch

from patchslim.errors import BudgetError
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs, steps_macs
from patchslim.plan import BY_HAND, SlimPlan, make_plan
from patchslim.steps import Step

Counts = tuple[int, ...]  # patches that each block keeps
Drops = tuple[int, ...]  # blocks (from 1) that drop patches where others merge
STRIDE = 1 / 10  # of the patches, removed from one block at a time on the way to the budget
MOVES = (1 / 24, 1 / 48)  # of the patches, removed more or less in one block at a time once there
SWEEPS = 2  # over the blocks per size of move, at most


@dataclass(frozen=True)
class Schedule:
    """The blocks that may remove patches, and how many each can; removals, one per such block, in any unit."""

    info: HostInfo
    multiple: int = 1  # tokens come by multiples of this

    @property
    def blocks(self) -> int:
        """All, or all but the last where only prefix tokens are read: it computes no patch."""
        return self.info.depth if self.info.reads_patches else self.info.depth - 1

    def counts(self, removals: Sequence[float], scale: float) -> Counts:
        """Patches per block when the removals are scaled; at least one stays as long as any is read."""
        left, gone, counts = self.info.patches, 0.0, []
        for removal in removals:
            gone += removal * scale
            left = min(left, make_divisible(self.info, self.multiple, max(1, self.info.patches - round(gone))))
            counts.append(left)
        return (*counts, *[0] * (self.info.depth - self.blocks))

    def removals(self, counts: Sequence[int]) -> list[float]:
        """The removals that lead to some counts, at scale 1."""
        above = (self.info.patches, *counts)
        return [float(above[block] - counts[block]) for block in range(self.blocks)]

    def moved(self, counts: Counts, block: int, more: float) -> list[float]:
        """The removals that lead to some counts, one block's (from 0) by so many patches more, or fewer."""
        removals = self.removals(counts)
        removals[block] = max(0.0, removals[block] + more)
        return removals

    def shifted(self, counts: Counts) -> Iterator[list[float]]:
        """The removals that lead to some counts, one block's left to a neighbour that removes none."""
        removals = self.removals(counts)
        for block, other in permutations(range(self.blocks), 2):
            if abs(block - other) == 1 and removals[block] and not removals[other]:
                moved = list(removals)
                moved[block], moved[other] = 0.0, removals[block]
                yield moved

    @property
    def everything(self) -> Counts:
        """Nothing removed."""
        return self.counts([0.0] * self.blocks, 1.0)

    @property
    def least(self) -> Counts:
        """As much removed as early as can be."""
        return self.counts([1.0] * self.blocks, 1e6 * self.info.patches)

    def fit(self, removals: Sequence[float], fits: Callable[[Counts], bool]) -> Counts:
        """The least scaled removals that fit, found by bisection; the most there can be if none do."""
        low, high = 0.0, 1e6 * self.info.patches
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(self.counts(removals, middle)) else (middle, high)
        return self.counts(removals, high)


def make_divisible(info: HostInfo, multiple: int, count: int) -> int:
    """The least number of patches from `count` on whose tokens are a multiple; all at most, 0 stays 0.

    Up, not down: where a device takes tokens by multiples, those that fill one up cost nothing.
    """
    if count == 0:
        return 0
    return min(info.patches, -(-(info.prefix_tokens + count) // multiple) * multiple - info.prefix_tokens)


@dataclass(frozen=True)
class Draft:
    """Steps, and a whole plan, for any patches per block."""

    info: HostInfo
    steps: Callable[[Counts, Drops], list[Step]]
    whole: Callable[[Counts, Drops], SlimPlan] | None = None  # where steps alone do not make a plan
    merges: bool = False  # some blocks may drop instead
    empties: bool = False  # a block may keep no patch at all
    most: int | None = None  # at most so many blocks remove patches; None: as many as pay
    method: str = BY_HAND  # whose plans they are

    def plan(self, counts: Counts, drops: Drops) -> SlimPlan:
        """The whole plan."""
        if self.whole is not None:
            return self.whole(counts, drops)
        return make_plan(self.info, self.steps(counts, drops), method=self.method)

    def sketch(self, counts: Counts) -> SlimPlan:
        """A plan for a clock, with patches that nobody chose: time does not depend on which."""
        steps, order = self.steps(counts, ()), None
        if any(step.ordered and 0 < count < self.info.patches for step, count in zip(steps, counts, strict=True)):
            order = torch.randperm(self.info.patches, generator=torch.Generator().manual_seed(0)).tolist()
        return make_plan(self.info, steps, order, method=self.method)

    def schedule(self, multiple: int = 1) -> Schedule:
        """The blocks that may remove patches, and how many each can."""
        return Schedule(self.info, multiple)

    def reachable(self) -> tuple[float, float]:
        """The least and the largest MAC ratio that a plan can have."""
        limits = (self.fewest(), self.schedule().everything)
        low, high = (steps_macs(self.info, self.steps(counts, ())) / host_macs(self.info) for counts in limits)
        return low, high

    def fewest(self) -> Counts:
        """The fewest patches per block that a plan can keep."""
        return (int(self.info.reads_patches),) * self.info.depth if self.empties else self.schedule().least


Fit = Callable[[Sequence[float]], Counts]  # removals, scaled to the budget
Error = Callable[[Counts], float]


def descend(schedule: Schedule, error: Error, cost: Error, enough: Callable[[Counts], bool]) -> Counts:
    """Remove patches where that costs the least error per MAC saved, a stride at a time, until it is enough."""
    counts, stride = schedule.everything, max(schedule.multiple, round(STRIDE * schedule.info.patches))
    while not enough(counts):
        trials = [schedule.counts(schedule.moved(counts, block, stride), 1.0) for block in range(schedule.blocks)]
        further = [after for after in trials if after != counts]
        if not further:
            break
        known, spent = error(counts), cost(counts)
        counts = min(further, key=lambda after: (error(after) - known) / max(spent - cost(after), 1))
    return counts


def removing(patches: int, counts: Sequence[int]) -> list[int]:
    """The blocks (from 1) that remove some patches and keep others."""
    above = (patches, *counts)
    return [layer for layer, count in enumerate(counts, start=1) if 0 < count < above[layer - 1]]


def concentrate(schedule: Schedule, error: Error, fit: Fit, counts: Counts, most: int) -> Counts:
    """Have at most so many blocks remove patches. One after the other leaves it to the rest, in proportion: the one
    that this costs the least error, which is infinite for what does not fit."""
    while len(blocks := removing(schedule.info.patches, counts)) > most:
        trials = [fit(schedule.moved(counts, block - 1, -math.inf)) for block in blocks]
        fewer = [after for after in trials if len(removing(schedule.info.patches, after)) < len(blocks)]
        counts = min(fewer, key=error, default=counts)
        if not fewer or error(counts) == math.inf:
            raise BudgetError(f"Not enough patches can leave where so few blocks choose ({most}); allow more.")
    return counts


def improve(schedule: Schedule, error: Error, fit: Fit, best: Counts) -> Counts:
    """Let one block at a time remove more or fewer patches, the others in proportion, or leave it to a neighbour, while
    the error falls."""
    if not any(schedule.removals(best)):
        return best
    for move in MOVES:
        size = float(max(schedule.multiple, round(move * schedule.info.patches)))
        for _ in range(SWEEPS):
            before = best
            for block, more in product(range(schedule.blocks), (size, -size)):
                removals = schedule.moved(best, block, more)
                best = min(best, fit(removals) if any(removals) else best, key=error)
            best = min([best, *(fit(removals) for removals in schedule.shifted(best))], key=error)
            if best == before:
                break
    return best
