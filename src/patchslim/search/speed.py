"""A speed-up to reach on the device at hand: prices of a block's parts, a network to get them right, and plans timed as
a whole until one is as fast as was asked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from patchslim.errors import BudgetError, PatchslimWarning
from patchslim.macs import host_macs
from patchslim.plan import SlimPlan
from patchslim.search.budget import fewest
from patchslim.search.cost import Find, Found, MacCost
from patchslim.search.prices import LatencyCost, blocks_of, fit_prices, parts_of
from patchslim.search.schedule import Counts, Slots
from patchslim.search.sketch import sketch
from patchslim.search.stopwatch import Stopwatch

CLOSE = 0.02  # a plan this close to the speed-up asked for is not corrected
ROUNDS = 4  # plans timed as a whole, at most
FAR = 0.07  # plans this much slower than asked for, and times that spread this much, are told
ENDS = (0.8, 0.5, 0.25, 0.1)  # of the patches left at the end of the networks whose blocks are timed

Timer = Callable[[SlimPlan], dict[str, Any]]


class SpeedBudget:
    """A limit on the time of a plan: the host's over the speed-up asked for."""

    def __init__(self, watch: Stopwatch, speedup: float) -> None:
        self.watch, self.speedup, self.info = watch, speedup, watch.host.info
        self.kind = MacCost.under(self.info, watch.config)
        self.slots = Slots(self.info, halves=watch.config.in_pairs)
        self.report: dict[str, Any] = {}
        self.cost = self._cost()
        self._check_reachable()

    @property
    def ratio(self) -> float:
        """The share of the host's time that a plan may take."""
        return 1 / self.speedup

    def meet(self, find: Find[Found], start: float | None = None, timer: Timer | None = None) -> tuple[SlimPlan, Found]:
        """What is found at the ratio where the whole network, timed against the host, is as fast as was asked.

        Blocks add up to a network only roughly. `find` begins at `start`, else at the ratio itself, and its plans are
        timed by `timer`; the ratio is then corrected by what was missed. The plan that came closest is taken.
        """
        ratio, ratios = self.ratio if start is None else start, list[float]()
        tried: list[tuple[float, dict[str, Any], tuple[SlimPlan, Found]]] = []
        for _ in range(ROUNDS):
            plan, found = find(ratio)
            timed = (timer or self.watch.whole)(plan)
            missed = abs(self.speedup * timed["share"] - 1)
            known = any(plan == other for _, _, (other, _) in tried)
            tried.append((missed, timed, (plan, found)))
            if missed <= CLOSE or known:
                break
            ratios.append(ratio)
            ratio = next_guess(ratios, [one[1]["share"] for one in tried], self.ratio)
        missed, timed, best = min(tried, key=lambda one: one[0])
        self._report(best[0], timed)
        return best

    def _report(self, plan: SlimPlan, timed: dict[str, Any]) -> None:
        config, predicted = self.watch.config, 1 / timed["share"]
        self.report = {
            "asked": self.speedup,
            "predicted": predicted,
            "from_blocks": 1 / self.cost.share(plan.counts),
            **self.watch.place,
            "batch_size": config.speed_batch_size,
            "dtype": config.speed_dtype,
            "modes": list(self.watch.contest.modes),
            "mode": timed["modes"]["slim"],
            "host_mode": timed["modes"]["host"],
            "seconds_per_batch": timed["seconds"]["slim"],
            "host_seconds_per_batch": timed["seconds"]["host"],
            "spread": timed["spread"],
            "grain": self.cost.grain,
        }
        if predicted < self.speedup * (1 - FAR):
            self._warn(f"The closest plan is {predicted:.2f}× as fast as the host, not {self.speedup:g}× as asked.")
        if timed["spread"] > FAR:
            self._warn(
                f"Times of one model spread by {timed['spread']:.0%}: the machine is busy with something else, and the "
                "speed-up that the plan predicts may be off."
            )

    def _warn(self, sentence: str) -> None:
        warnings.warn(sentence, PatchslimWarning, stacklevel=2)

    def _cost(self) -> LatencyCost:
        """Prices from timed blocks, made right for a whole network about as fast as asked."""
        parts, times = [], []
        for counts in self._probes():
            parts += [parts_of(self.kind, block) for block in blocks_of(self.kind, counts)]
            times += self.watch.blocks(self._sketch(counts))
        rest = self.watch.rest(self._sketch(self.slots.everything))
        rough = LatencyCost(self.kind, tuple(fit_prices(parts, times)), rest, self.watch.grain())
        near = self._near()
        return rough.right_for(near, self._share(near))

    def _probes(self) -> list[Counts]:
        """Networks whose blocks are timed: removing evenly to various ends, and at once early or half-way."""
        slots, patches = self.slots, self.info.patches
        if not slots.blocks:  # one block, of which only the prefix is read
            return [slots.everything]
        even = [slots.counts([(1 - end) * patches / slots.blocks] * slots.blocks, 1.0) for end in ENDS]
        sudden = []
        for place in {0, slots.blocks // 2}:
            removals = [0.0] * slots.blocks
            removals[place] = patches / 2
            sudden.append(slots.counts(removals, 1.0))
        return list(dict.fromkeys([*even, *sudden]))

    def _near(self) -> Counts:
        """A network about as fast as asked, by its MACs."""
        limit = self.ratio * host_macs(self.info)
        return self.slots.fit([1.0] * self.slots.blocks, lambda counts: self.kind.of(counts) <= limit)

    def _share(self, counts: Counts) -> float:
        return float(self.watch.whole(self._sketch(counts))["share"])

    def _sketch(self, counts: Counts) -> SlimPlan:
        return sketch(self.info, self.watch.config, counts)

    def _check_reachable(self) -> None:
        """Raise BudgetError, saying what can be reached, when the speed-up can't; the least network tells."""
        least = fewest(self.info, self.watch.config)
        if self.cost.share(least) < 0.9 * self.ratio:
            return
        share = self._share(least)
        if share > self.ratio:
            raise BudgetError(
                f"{self._case()} can't be made {self.speedup:g}× as fast with {self.kind.select} patches and removed "
                f"set to {self.kind.removed}; {math.floor(100 / share + 1e-6) / 100:.2f}× is the most."
            )

    def _case(self) -> str:
        config, place = self.watch.config, self.watch.place
        return f"{self.info.name} on {place['device']} (batch {config.speed_batch_size}, {config.speed_dtype})"


def next_guess(given: Sequence[float], found: Sequence[float], wanted: float) -> float:
    """What to give to find what is wanted: in proportion at first, then along the line through the last two, which is
    not believed to be much steeper or flatter than that."""
    slope = found[-1] / given[-1]
    if len(given) > 1 and given[-1] != given[-2]:
        line = (found[-1] - found[-2]) / (given[-1] - given[-2])
        slope = min(max(line, slope / 3), slope * 3)
    return given[-1] + (wanted - found[-1]) / slope
