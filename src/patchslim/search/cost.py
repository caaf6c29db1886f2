"""What is asked of a search, what plans cost, in MACs or in time, and a limit on that.

A block's time is a sum of what it does, each part at a price of its own, and a plan's is the sum of its blocks. Prices
are fitted to blocks that were timed. They are never negative, so that a token more is never a gain.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from patchslim.errors import BudgetError
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs, steps_macs
from patchslim.plan import SlimPlan
from patchslim.search.schedule import Draft
from patchslim.steps import Step
from patchslim.timing.modes import DTYPES, MODES
from patchslim.timing.stopwatch import Conditions

PAPERS_TOLERANCE = 0.01
PARTS = 7  # of a block's work, see `parts_of`
MACS = (1, 2, 3)  # those that every block has and that are counted in MACs
CHOOSING = (5, 6)
EXTRAS, EXTRA = (0, 5), 0.1  # those that are there or not, and what they may cost: of a whole block
DEARER = 3  # times as dear or as cheap as blocks alone say choosing may be in a whole network, at most

Found = TypeVar("Found")
# A share of the host's cost → a plan within it, and what else is known.
Find = Callable[[float], tuple[SlimPlan, Found]]


@dataclass(frozen=True)
class Target:
    """One of three limits; none is the paper's tolerance of 0.01.

    A speed-up is that of whole batches on the device of the model, against the model as it comes, each in its fastest
    mode, as `bench` measures it.
    """

    tolerance: float | None = None  # relative error of what the head reads; of a block's output with Algorithm 1
    macs: float | None = None  # MACs of the slim model over the host's
    speedup: float | None = None  # the host's time over the slim model's
    batch_size: int = 32  # images in a batch that is timed
    dtype: str = "float32"  # of weights and images that are timed
    mode: str = "auto"  # eager, compiled, graph, compiled-graph; auto: on a GPU whichever is fastest, else eager

    def __post_init__(self) -> None:
        if sum(limit is not None for limit in (self.tolerance, self.macs, self.speedup)) > 1:
            raise BudgetError("Give a tolerance, a MAC ratio or a speed-up: one of them, not both.")
        if self.speedup is not None and not 1 < self.speedup < math.inf:
            raise BudgetError(f"The speed-up has to be a number above 1, not {self.speedup}; try 1.6.")
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise BudgetError(f"The tolerance is a relative error and can't be {self.tolerance}; try 0.01.")
        if self.macs is not None and not 0 < self.macs < 1:
            raise BudgetError(f"The MAC ratio has to lie between 0 and 1, not at {self.macs}; try 0.6.")
        if self.batch_size < 1:
            raise BudgetError(f"A batch that is timed has at least 1 image, not {self.batch_size}.")
        if self.dtype not in DTYPES:
            raise BudgetError(f"There is no dtype {self.dtype!r}; choose one of {', '.join(DTYPES)}.")
        if self.mode not in ("auto", *MODES):
            raise BudgetError(f"There is no mode {self.mode!r} to time in; choose one of auto, {', '.join(MODES)}.")

    @property
    def allowed(self) -> float | None:
        """The tolerance, the paper's where nothing is asked for; None where MACs or time are the limit."""
        if self.macs is not None or self.speedup is not None:
            return None
        return PAPERS_TOLERANCE if self.tolerance is None else self.tolerance

    @property
    def conditions(self) -> Conditions:
        """How a speed-up is timed."""
        return Conditions(self.batch_size, self.dtype, self.mode)

    def as_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return asdict(self)


@dataclass(frozen=True)
class MacCost:
    """MACs, counted in closed form."""

    draft: Draft
    multiple: ClassVar[int] = 1
    unit: ClassVar[tuple[str, ...]] = ()

    def of(self, counts: Sequence[int]) -> int:
        """MACs per image."""
        return steps_macs(self.draft.info, self.draft.steps(tuple(counts), ()))


@dataclass(frozen=True)
class LatencyCost:
    """The time that plans of one kind take on a device, in as many MACs as the host takes that time for. The host costs
    its MACs either way, so a search need not know which it is."""

    draft: Draft
    prices: tuple[float, ...]  # of each part, in shares of the host's time (or in whole blocks, until it is made right)
    fixed: float = 0.0  # what is not in blocks: embedding, head
    multiple: int = 1  # the device likes tokens, prefix included, by multiples of this

    @property
    def unit(self) -> tuple[str, ...]:
        """What it counts if not MACs, and at which prices; a cache keeps what depends on it apart."""
        return (f"time {self.prices} {self.fixed} {self.multiple}",)

    def share(self, counts: Sequence[int]) -> float:
        """The time over the host's."""
        return sum(self.shares(counts))

    def of(self, counts: Sequence[int]) -> float:
        """The time in the host's MACs."""
        return self.share(counts) * host_macs(self.draft.info)

    def shares(self, counts: Sequence[int]) -> tuple[float, float]:
        """The time of all but choosing, and that of choosing, over the host's."""
        parts = parts_of(self.draft.info, self.draft.steps(tuple(counts), ()))
        times = [price * sum(column) for price, column in zip(self.prices, zip(*parts, strict=True), strict=True)]
        choosing = sum(times[part] for part in CHOOSING)
        return self.fixed + sum(times) - choosing, choosing

    def right_for(self, counts: Sequence[int], share: float) -> Self:
        """The same in proportion, right for a network that was timed as a whole."""
        factor = share / self.share(counts)
        return replace(self, prices=tuple(factor * price for price in self.prices), fixed=factor * self.fixed)

    def right_for_both(self, few: tuple[Sequence[int], float], many: tuple[Sequence[int], float]) -> Self:
        """The same, right for two whole networks and their shares: one that chooses in few blocks, one in many.

        In a whole network choosing may be dearer or cheaper than blocks alone say: a compiler gains less or more there.
        """
        (rest, choosing), (rest_many, choosing_many) = self.shares(few[0]), self.shares(many[0])
        ratio = few[1] / many[1]
        # rest + dearer × choosing = ratio × (rest_many + dearer × choosing_many)
        more = ratio * choosing_many - choosing
        dearer = (rest - ratio * rest_many) / more if more > 0 else 1.0
        dearer = min(max(dearer, 1 / DEARER), DEARER)
        prices = [price * (dearer if part in CHOOSING else 1.0) for part, price in enumerate(self.prices)]
        return replace(self, prices=tuple(prices)).right_for(*few)


Cost = MacCost | LatencyCost


@dataclass
class Budget:
    """A limit on a cost, taken at its word, as that of MACs can be: what is found within it meets it."""

    cost: Cost
    ratio: float | None  # the share of the host's cost that a plan may have; None where an error is the limit
    report: dict[str, Any] = field(default_factory=dict)  # what it found out of the plan's speed

    def meet(self, find: Find[Found]) -> tuple[SlimPlan, Found]:
        """What is found within the limit."""
        assert self.ratio is not None
        return find(self.ratio)


def check_reachable(draft: Draft, ratio: float) -> None:
    """Raise BudgetError, saying what can be reached, when the MAC ratio can't."""
    low, high = draft.reachable()
    if ratio < low:
        raise BudgetError(
            f"A MAC ratio of {ratio:g} can't be reached on {draft.info.name} by {draft.method}; "
            f"anything from {low:.3f} to {high:.3f} can."
        )


def parts_of(info: HostInfo, steps: Sequence[Step]) -> list[list[float]]:
    """What each block does that takes time: (depth, PARTS), MACs where there are any to count.

    Being called; keys and values; queries, projection and MLP; attention; the same once more where keys have sizes;
    choosing patches at all; the MACs of choosing and merging.
    """
    entering, sized, found = info.patches, False, []
    for layer, step in enumerate(steps, start=1):
        shape, work = info.blocks[layer - 1], step.work(info, layer, entering)
        projection = 2 * shape.width * shape.attention_width
        attention = 2 * work.queries * work.keys * shape.attention_width
        computed = work.queries * projection + work.fed * shape.mlp_macs
        own = (1, work.keys * projection, computed, attention, attention * sized, work.choice > 0, work.choice)
        found.append([float(part) for part in own])
        sized = sized or step.sizes
        entering = step.leaving(entering)
    return found


def fit_prices(parts: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """Prices p ≥ 0 that make Σ_k p_k parts[i][k] about times[i], by relative least squares: (rows, PARTS), (rows,).

    Times are counted in whole blocks. The more they scatter, the nearer prices stay to what is expected of them: all
    MACs cost the same, and nothing else anything.
    """
    wanted = torch.tensor(times, dtype=torch.float64)
    rows = torch.tensor(parts, dtype=torch.float64) / wanted[:, None]
    macs = rows[:, list(MACS)].sum(dim=1)
    per_mac = float(macs.sum() / macs.square().sum())
    scale = torch.tensor([EXTRA if part in EXTRAS else per_mac for part in range(PARTS)], dtype=torch.float64)
    expected = torch.tensor([1.0 if part in (*MACS, PARTS - 1) else 0.0 for part in range(PARTS)], dtype=torch.float64)
    ones = torch.ones(len(rows), dtype=torch.float64)
    free = _non_negative(rows * scale, ones)
    scatter = float((rows * scale @ free - 1).square().mean().sqrt())
    held = torch.cat([rows * scale, scatter * torch.eye(PARTS, dtype=torch.float64)])
    return (_non_negative(held, torch.cat([ones, scatter * expected])) * scale).tolist()


def _non_negative(rows: Tensor, wanted: Tensor) -> Tensor:
    """x ≥ 0 of about least |rows x − wanted|: what would have to be negative is left out, worst first."""
    used = [column for column in range(rows.shape[1]) if rows[:, column].any()]
    found = rows.new_zeros(rows.shape[1])
    while used:
        # The shortest solution where there are several: parts may go hand in hand.
        solution = torch.linalg.lstsq(rows[:, used], wanted[:, None], driver="gelsd").solution[:, 0]
        if (solution >= 0).all():
            found[used] = solution
            break
        used.pop(int(solution.argmin()))
    return found
