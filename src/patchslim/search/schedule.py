"""How many patches each block removes: from nothing down to a budget, then improved move by move at that budget.

A schedule is a list of removals, one per block that may remove patches, in any unit: fitting scales it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from patchslim.errors import BudgetError
from patchslim.hosts import HostInfo

Counts = tuple[int, ...]
STRIDE = 1 / 10  # of the patches, removed from one block at a time on the way to the budget
MOVES = (1 / 24, 1 / 48)  # of the patches, removed more or less in one block at a time once there
SWEEPS = 2  # over the blocks per size of move, at most


@dataclass(frozen=True)
class Schedule:
    """The blocks that may remove patches, and how many each can."""

    info: HostInfo
    halves: bool = False  # whether a block can remove no more than half, as pairs do
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
            least = max(1, left // 2) if self.halves else 1
            left = min(left, make_divisible(self.info, self.multiple, max(least, self.info.patches - round(gone))))
            counts.append(left)
        return (*counts, *[0] * (self.info.depth - self.blocks))

    def removals(self, counts: Counts) -> list[float]:
        """The removals that lead to some counts, at scale 1."""
        above = (self.info.patches, *counts)
        return [float(above[block] - counts[block]) for block in range(self.blocks)]

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


Fit = Callable[[Sequence[float]], Counts]  # removals, scaled to the budget
Error = Callable[[Counts], float]
Price = Callable[[Counts], float]  # in MACs


def descend(schedule: Schedule, error: Error, macs: Price, enough: Callable[[Counts], bool]) -> Counts:
    """Remove patches where that costs the least error per MAC saved, a stride at a time, until it is enough."""
    counts, stride = schedule.everything, max(schedule.multiple, round(STRIDE * schedule.info.patches))
    while not enough(counts):
        further = [
            after for block in range(schedule.blocks) if (after := _removed(schedule, counts, block, stride)) != counts
        ]
        if not further:
            break
        known, spent = error(counts), macs(counts)
        counts = min(further, key=lambda after: (error(after) - known) / max(spent - macs(after), 1))
    return counts


def _removed(schedule: Schedule, counts: Counts, block: int, patches: int) -> Counts:
    """The counts when a block removes some patches more."""
    removals = schedule.removals(counts)
    removals[block] += patches
    return schedule.counts(removals, 1.0)


def removing(patches: int, counts: Sequence[int]) -> list[int]:
    """The blocks (from 1) that remove some patches and keep others."""
    above = (patches, *counts)
    return [layer for layer, count in enumerate(counts, start=1) if 0 < count < above[layer - 1]]


def concentrate(schedule: Schedule, error: Error, fit: Fit, counts: Counts, most: int) -> Counts:
    """Have at most so many blocks remove patches. One after the other leaves it to the rest, in proportion: the one
    that this costs the least error, which is infinite for what does not fit."""
    while len(blocks := removing(schedule.info.patches, counts)) > most:
        trials = [fit(_without(schedule, counts, block)) for block in blocks]
        fewer = [after for after in trials if len(removing(schedule.info.patches, after)) < len(blocks)]
        counts = min(fewer, key=error, default=counts)
        if not fewer or error(counts) == math.inf:
            raise BudgetError(f"Not enough patches can leave where so few blocks choose ({most}); allow more.")
    return counts


def _without(schedule: Schedule, counts: Counts, layer: int) -> list[float]:
    return [0.0 if block == layer - 1 else removal for block, removal in enumerate(schedule.removals(counts))]


def improve(schedule: Schedule, error: Error, fit: Fit, best: Counts) -> Counts:
    """Let one block at a time remove more or fewer patches, the others in proportion, while the error falls."""
    if not any(schedule.removals(best)):
        return best
    for move in MOVES:
        size = float(max(schedule.multiple, round(move * schedule.info.patches)))
        for _ in range(SWEEPS):
            before = best
            for block in range(schedule.blocks):
                for change in (size, -size):
                    best = min(best, _moved(schedule, fit, best, block, change), key=error)
            if best == before:
                break
    return best


def _moved(schedule: Schedule, fit: Fit, counts: Counts, block: int, change: float) -> Counts:
    removals = schedule.removals(counts)
    removals[block] = max(0.0, removals[block] + change)
    return fit(removals) if any(removals) else counts
