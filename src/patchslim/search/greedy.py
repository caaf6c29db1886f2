"""Static patches by greedy reconstruction: patch after patch leaves, the one whose removal changes the readout least.

Which patches and how many per block come out together. Removals follow one path from everything to nothing, so every
budget is a stretch of it, and plans for several budgets are nested in each other.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from patchslim.cache import Cache
from patchslim.events import Listener
from patchslim.evidence.features import Features
from patchslim.evidence.taylor import GateDerivatives, Removal
from patchslim.hosts import Host
from patchslim.macs import host_macs, steps_macs
from patchslim.plan import SlimPlan, static_plan, static_steps
from patchslim.search.cost import Budget
from patchslim.search.measured import measure
from patchslim.search.schedule import make_divisible

STRIDE = 0.05  # of the host's MACs, after which derivatives are taken anew
PROBES = 8  # random directions per image


@dataclass
class Greedy:
    """The path of one host on some images, as far as it has been gone; remembered stage by stage."""

    host: Host
    features: Features
    cache: Cache
    listen: Listener
    budget: Budget
    seed: int

    def __post_init__(self) -> None:
        self.info, self.cost = self.host.info, self.budget.cost
        self.derivatives = GateDerivatives(self.host, self.features, self.seed)
        self.moves: list[int] = []  # patches, in the order in which each leaves one block more
        self.stages = [0]  # moves up to the end of each stage

    def search(self, tolerance: float | None = None) -> tuple[SlimPlan, float]:
        """The plan that the budget allows, or the smallest within a tolerance of the readout, and its error."""
        self.features.focus((0, self.info.depth))  # counts the images also where everything is remembered
        if tolerance is None:
            plan, count = self.budget.meet(self.at_ratio)
            return plan, self.error(count)
        count = self._first(lambda moves: self.error(moves) > tolerance)
        count = max(0, count - (self.error(count) > tolerance))
        return self.plan(count), self.error(count)

    def at_ratio(self, ratio: float) -> tuple[SlimPlan, int]:
        """The first plan within a share of the host's cost, and the moves to it."""
        budget = ratio * host_macs(self.info)
        count = self._first(lambda moves: self.cost.of(self.kept(moves)) <= budget)
        return self.plan(count), count

    def _first(self, over: Callable[[int], bool]) -> int:
        """The least number of moves for which something holds, or all there are: by stages, then by halves."""
        while not over(len(self.moves)) and self._extend():
            pass
        if len(self.stages) < 2:
            return 0
        last = next((stage for stage, moves in enumerate(self.stages) if over(moves)), len(self.stages) - 1)
        low, high = self.stages[max(last - 1, 0)], self.stages[last]
        return low + bisect_left(range(low, high), True, key=over)

    def exits(self, moves: int) -> Tensor:
        """The last block that computes each patch, 0 where none does, after so many moves: (N,)."""
        gone = torch.tensor(self.moves[:moves], dtype=torch.long)
        return self.derivatives.blocks - torch.bincount(gone, minlength=self.info.patches)

    def counts(self, exits: Tensor) -> list[int]:
        """Patches per block."""
        blocks = [int((exits >= block).sum()) for block in range(1, self.derivatives.blocks + 1)]
        return blocks + [0] * (self.info.depth - len(blocks))

    def macs(self, moves: int) -> int:
        """MACs per image after so many moves."""
        return steps_macs(self.info, static_steps(self.info, self.kept(moves), "slice"))

    def kept(self, moves: int) -> list[int]:
        """Patches per block of the plan after so many moves: up to what the device likes."""
        return [make_divisible(self.info, self.cost.multiple, count) for count in self.counts(self.exits(moves))]

    def plan(self, moves: int) -> SlimPlan:
        """The plan after so many moves; where tokens come by multiples, the last that left fill one up again."""
        blocks: list[list[int]] = []
        inner: list[int] = []
        # From the last block, so that a patch that is back is back in those before it as well.
        for count, left in reversed(list(zip(self.kept(moves), self._left(moves), strict=True))):
            others = sorted(set(range(self.info.patches)) - set(inner), key=lambda patch: -left[patch])
            inner = [*inner, *others[: count - len(inner)]]
            blocks.insert(0, inner)
        return static_plan(self.info, blocks)

    def _left(self, moves: int) -> list[list[float]]:
        """By block, the move with which each patch left it; infinity for those still there."""
        left = [[math.inf] * self.info.patches for _ in range(self.info.depth)]
        exits = [self.derivatives.blocks] * self.info.patches
        for move, patch in enumerate(self.moves[:moves]):
            left[exits[patch] - 1][patch] = move
            exits[patch] -= 1
        return left

    def error(self, moves: int) -> float:
        """The readout's relative error after so many moves, measured once."""
        key = ("error", moves, *self.cost.unit)  # every cost has a path of its own
        entry = self.cache.once(key, lambda: {"error": measure(self.host, self.features, self.plan(moves), {})})
        value = float(entry["error"])
        self.listen({"event": "stage", "macs_ratio": self.macs(moves) / host_macs(self.info), "error": value})
        return value

    def _extend(self) -> bool:
        """Go on by one stage; False where nothing is left to remove."""
        key = ("moves", len(self.stages) - 1, *self.cost.unit)
        entry = self.cache.once(key, lambda: {"moves": self._stage()})
        self.moves += entry["moves"]
        self.stages.append(len(self.moves))
        return bool(entry["moves"])

    def _stage(self) -> list[int]:
        """The moves by a stride, with derivatives taken where the path stands."""
        self.listen({"event": "stage", "macs_ratio": self.macs(len(self.moves)) / host_macs(self.info), "error": None})
        exits = self.exits(len(self.moves))
        counts = self.counts(exits)
        budget = self.cost.of(counts) - STRIDE * host_macs(self.info)
        if not any(self._saved(counts)):
            return []
        parts = list(self.derivatives.batches(exits, PROBES, len(self.stages)))
        jacobian = torch.cat([part.permute(1, 2, 0, 3).flatten(2) for part, _ in parts], dim=2)
        removal = Removal(jacobian, torch.cat([residual.flatten() for _, residual in parts]))
        moves: list[int] = []
        exits = exits.to(jacobian.device)
        while self.cost.of(counts) > budget:
            saved = self._saved(counts)
            if not any(saved):
                break
            patch = removal.best(exits, torch.tensor(saved, device=exits.device))
            block = int(exits[patch])
            removal.remove(patch, block)
            exits[patch] -= 1
            counts[block - 1] -= 1
            moves.append(patch)
        return moves

    def _saved(self, counts: Sequence[int]) -> list[float]:
        """What one patch less in a block saves, by block from 1 on; 0 where nested sets allow none to go."""
        now, saved, after = self.cost.of(counts), [0.0], [*counts[1:], 0]
        for block, count in enumerate(counts[: self.derivatives.blocks]):
            free = count > max(after[block], int(self.info.reads_patches))
            fewer = [*counts[:block], count - 1, *counts[block + 1 :]]
            saved.append(float(now - self.cost.of(fewer)) if free else 0.0)
        return saved
