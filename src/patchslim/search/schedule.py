"""How many patches each block removes: shapes to start from, fitted to a budget, and improved move by move.

A schedule is a list of removals, one per block that may remove patches, in any unit: fitting scales it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from patchslim.hosts import HostInfo

Counts = tuple[int, ...]
POWERS = (0.0, 0.6, 0.9, 1.2, 1.6)  # patches removed up to block l grow like l to this power; 0: all in block 1
MOVES = (1 / 12, 1 / 24, 1 / 48)  # of the patches, removed more or less in one block at a time
SWEEPS = 3  # over the blocks per size of move, at most


@dataclass(frozen=True)
class Slots:
    """The blocks that may remove patches, and how many each can."""

    info: HostInfo
    halves: bool = False  # whether a block can remove no more than half, as pairs do

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
            left = min(left, max(least, self.info.patches - round(gone)))
            counts.append(left)
        return (*counts, *[0] * (self.info.depth - self.blocks))

    def removals(self, counts: Counts) -> list[float]:
        """The removals that lead to some counts, at scale 1."""
        above = (self.info.patches, *counts)
        return [float(above[block] - counts[block]) for block in range(self.blocks)]

    def shape(self, power: float) -> list[float]:
        """Removals that add up like a power of the depth, to 1 in all."""
        ends = [(block / self.blocks) ** power if block else 0.0 for block in range(self.blocks + 1)]
        return [after - before for before, after in itertools.pairwise(ends)]

    def fit(self, removals: Sequence[float], fits: Callable[[Counts], bool]) -> Counts:
        """The least scaled removals that fit, found by bisection; the most there can be if none do."""
        low, high = 0.0, 1e6 * self.info.patches
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(self.counts(removals, middle)) else (middle, high)
        return self.counts(removals, high)


Fit = Callable[[Sequence[float]], Counts]  # removals, scaled to the budget


def improve(slots: Slots, error: Callable[[Counts], float], fit: Fit, best: Counts) -> Counts:
    """Let one block at a time remove more or fewer patches, the others in proportion, while the error falls."""
    if not any(slots.removals(best)):
        return best
    for move in MOVES:
        size = max(1.0, round(move * slots.info.patches))
        for _ in range(SWEEPS):
            before = best
            for block in range(slots.blocks):
                for change in (size, -size):
                    best = min(best, _moved(slots, fit, best, block, change), key=error)
            if best == before:
                break
    return best


def _moved(slots: Slots, fit: Fit, counts: Counts, block: int, change: float) -> Counts:
    removals = slots.removals(counts)
    removals[block] = max(0.0, removals[block] + change)
    return fit(removals) if any(removals) else counts
