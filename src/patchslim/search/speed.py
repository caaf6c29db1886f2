"""A speed-up to reach on the device at hand: prices of a block's parts, a network to get them right, and plans timed as
a whole until one is as fast as was asked."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patchslim.errors import BudgetError, PatchslimWarning
from patchslim.macs import host_macs
from patchslim.plan import SlimPlan
from patchslim.search.cost import Budget, Find, Found, LatencyCost, MacCost, fit_prices, parts_of
from patchslim.search.schedule import Counts, Draft
from patchslim.timing.stopwatch import Stopwatch

CLOSE = 0.02  # a plan this close to the speed-up asked for is not corrected
ROUNDS = 4  # plans timed as a whole, at most
FAR = 0.07  # plans this much slower than asked for, and times that spread this much, are told
FEW = 3  # blocks that choose in the smaller of two networks, unless that is said
ENDS = (0.8, 0.5, 0.25, 0.1)  # of the patches left at the end of the networks whose blocks are timed

Timer = Callable[[SlimPlan], dict[str, Any]]


class SpeedBudget(Budget):
    """A limit on the time of a plan: the host's over the speed-up asked for."""

    cost: LatencyCost
    ratio: float

    def __init__(self, watch: Stopwatch, draft: Draft, speedup: float) -> None:
        """BudgetError, saying what can be reached, when the speed-up can't; the least network tells."""
        self.watch, self.draft, self.speedup = watch, draft, speedup
        self.info, self.schedule = draft.info, draft.schedule()
        super().__init__(self._cost(1 / speedup), 1 / speedup)
        least = draft.fewest()
        if self.cost.share(least) < 0.9 * self.ratio:
            return
        share = self._share(least)
        if share > self.ratio:
            where = f"{watch.about['device']} (batch {watch.conditions.batch_size}, {watch.conditions.dtype})"
            raise BudgetError(
                f"{self.info.name} on {where} can't be made {speedup:g}× as fast by {draft.method}; "
                f"{math.floor(100 / share + 1e-6) / 100:.2f}× is the most."
            )

    def meet(self, find: Find[Found], start: float | None = None, timer: Timer | None = None) -> tuple[SlimPlan, Found]:
        """What is found where the whole network, timed against the host, is as fast as was asked.

        Blocks add up to a network only roughly, so the ratio is corrected by what was missed.
        """
        best, timed = meet_speedup(find, timer or self.watch.whole, self.speedup, start)
        own = {"from_blocks": 1 / self.cost.share(best[0].counts), "multiple": self.cost.multiple}
        self.report = reported(self.watch, self.speedup, timed) | own
        return best

    def _cost(self, ratio: float) -> LatencyCost:
        """Prices from timed blocks, made right for whole networks about as fast as asked, by their MACs: one that
        removes evenly, and where blocks choose patches one in which few do."""
        parts, times = [], []
        for counts in self._probes():
            parts += parts_of(self.info, self.draft.steps(counts, ()))
            times += self.watch.blocks(self.draft.sketch(counts))
        rest = self.watch.rest(self.draft.sketch(self.schedule.everything))
        rough = LatencyCost(self.draft, tuple(fit_prices(parts, times)), rest, self.watch.multiple())
        limit, macs, blocks = ratio * host_macs(self.info), MacCost(self.draft), self.schedule.blocks
        most = self.draft.most or FEW
        places = {int(blocks * (place + 0.5) / most) for place in range(most)}
        removals = [1.0] * blocks, [float(block in places) for block in range(blocks)]
        many, few = (self.schedule.fit(own, lambda counts: macs.of(counts) <= limit) for own in removals)
        if few == many or not rough.shares(many)[1]:
            return rough.right_for(many, self._share(many))
        return rough.right_for_both((few, self._share(few)), (many, self._share(many)))

    def _probes(self) -> list[Counts]:
        """Networks whose blocks are timed: removing evenly to various ends, and at once early or half-way."""
        schedule, patches = self.schedule, self.info.patches
        if not schedule.blocks:  # one block, of which only the prefix is read
            return [schedule.everything]
        removals = [[(1 - end) * patches / schedule.blocks] * schedule.blocks for end in ENDS]
        removals += [schedule.moved(schedule.everything, place, patches / 2) for place in {0, schedule.blocks // 2}]
        return list(dict.fromkeys(schedule.counts(own, 1.0) for own in removals))

    def _share(self, counts: Counts) -> float:
        return float(self.watch.whole(self.draft.sketch(counts))["share"])


def reported(watch: Stopwatch, speedup: float, timed: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan that was timed as a whole predicts; a warning where that is not what was asked."""
    conditions, predicted = watch.conditions, 1 / timed["share"]
    if predicted < speedup * (1 - FAR):
        missed = f"The closest plan is {predicted:.2f}× as fast as the host, not {speedup:g}× as asked."
        warnings.warn(missed, PatchslimWarning, stacklevel=2)
    if timed["spread"] > FAR:
        busy = (
            f"Times of one model spread by {timed['spread']:.0%}: the machine is busy with something else, and the "
            "speed-up that the plan predicts may be off."
        )
        warnings.warn(busy, PatchslimWarning, stacklevel=2)
    return {
        "asked": speedup,
        "predicted": predicted,
        **watch.about,
        "batch_size": conditions.batch_size,
        "dtype": conditions.dtype,
        "modes": list(watch.contest.modes),
        "mode": timed["modes"]["slim"],
        "host_mode": timed["modes"]["host"],
        "seconds_per_batch": timed["seconds"]["slim"],
        "host_seconds_per_batch": timed["seconds"]["host"],
        "spread": timed["spread"],
    }


def meet_speedup(
    find: Find[Found], timer: Timer, speedup: float, start: float | None = None
) -> tuple[tuple[SlimPlan, Found], dict[str, Any]]:
    """The plan that comes closest to a speed-up, and how it was timed.

    `find` begins at the share `start`, else at 1 / speedup; the share is then corrected by what was missed.
    """
    wanted = 1 / speedup
    ratios, shares = [wanted if start is None else start], list[float]()
    tried: list[tuple[float, dict[str, Any], tuple[SlimPlan, Found]]] = []
    for _ in range(ROUNDS):
        plan, found = find(ratios[-1])
        timed = timer(plan)
        missed = abs(speedup * timed["share"] - 1)
        known = any(plan == other for _, _, (other, _) in tried)
        tried.append((missed, timed, (plan, found)))
        if missed <= CLOSE or known:
            break
        shares.append(timed["share"])
        ratios.append(next_guess(ratios, shares, wanted))
    _, timed, best = min(tried, key=lambda one: one[0])
    return best, timed


def next_guess(given: Sequence[float], found: Sequence[float], wanted: float) -> float:
    """What to give to find what is wanted: in proportion at first, then along the line through the last two, which is
    not believed to be much steeper or flatter than that."""
    slope = found[-1] / given[-1]
    if len(given) > 1 and given[-1] != given[-2]:
        line = (found[-1] - found[-2]) / (given[-1] - given[-2])
        slope = min(max(line, slope / 3), slope * 3)
    return given[-1] + (wanted - found[-1]) / slope
