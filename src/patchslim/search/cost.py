"""What plans cost: all that a search has to know of a budget, in MACs or in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, TypeVar

from patchslim.errors import BudgetError
from patchslim.macs import head_macs, host_macs
from patchslim.plan import SlimPlan
from patchslim.search.draft import Draft
from patchslim.timing.prices import parts_of

Found = TypeVar("Found")
# A share of the host's cost → a plan within it, and what else is known.
Find = Callable[[float], tuple[SlimPlan, Found]]


class Cost(Protocol):
    """What a plan of one kind costs by its patches per block: in MACs, or in as many MACs as the host takes the same
    time for. The host costs its MACs either way, so a search need not know which it is."""

    @property
    def multiple(self) -> int:
        """The device likes tokens, prefix included, by multiples of this."""

    @property
    def unit(self) -> str:
        """What it counts, and at which prices; a cache keeps what depends on it apart."""

    def of(self, counts: Sequence[int]) -> float:
        """The cost of keeping so many patches in each block."""


class Budget(Protocol):
    """A limit on a cost, as a share of the host's; None where an error is the limit."""

    @property
    def cost(self) -> Cost:
        """What is limited."""

    @property
    def ratio(self) -> float | None:
        """The share of the host's cost that a plan may have."""

    def meet(self, find: Find[Found]) -> tuple[SlimPlan, Found]:
        """What is found within the limit."""


@dataclass(frozen=True)
class MacCost:
    """MACs, counted in closed form. Each block is counted once."""

    draft: Draft
    known: dict[tuple[int, int, str], int] = field(default_factory=dict, compare=False)
    multiple: ClassVar[int] = 1
    unit: ClassVar[str] = "MACs"

    def of(self, counts: Sequence[int]) -> int:
        """MACs per image."""
        info = self.draft.info
        total, entering = info.embed_macs, info.patches
        for layer, step in enumerate(self.draft.steps(tuple(counts), ()), start=1):
            key = (layer, entering, repr(step))
            if key not in self.known:
                self.known[key] = step.macs(info, layer, entering)
            total += self.known[key]
            entering = step.leaving(entering)
        return total + head_macs(info, entering)


@dataclass(frozen=True)
class LatencyCost:
    """The time that plans of one kind take on a device, in as many MACs as the host takes that time for."""

    draft: Draft
    prices: tuple[float, ...]  # of each part, in shares of the host's time (or in whole blocks, until it is made right)
    fixed: float = 0.0  # what is not in blocks: embedding, head
    multiple: int = 1

    @property
    def unit(self) -> str:
        """Time at these prices."""
        return f"time {self.prices} {self.fixed} {self.multiple}"

    def share(self, counts: Sequence[int]) -> float:
        """The time over the host's."""
        parts = parts_of(self.draft.info, self.draft.steps(tuple(counts), ()))
        return self.fixed + sum(price * part for own in parts for price, part in zip(self.prices, own, strict=True))

    def of(self, counts: Sequence[int]) -> float:
        """The time in the host's MACs."""
        return self.share(counts) * host_macs(self.draft.info)

    def right_for(self, counts: Sequence[int], share: float) -> LatencyCost:
        """The same in proportion, right for a network that was timed as a whole."""
        factor = share / self.share(counts)
        return replace(self, prices=tuple(factor * price for price in self.prices), fixed=factor * self.fixed)


@dataclass(frozen=True)
class PlainBudget:
    """A limit on a cost that is taken at its word, as that of MACs can be: what is found within it meets it."""

    cost: Cost
    ratio: float | None

    def meet(self, find: Find[Found]) -> tuple[SlimPlan, Found]:
        """What is found at the ratio."""
        assert self.ratio is not None
        return find(self.ratio)


def check_reachable(draft: Draft, ratio: float, method: str) -> None:
    """Raise BudgetError, saying what can be reached, when the MAC ratio can't."""
    low, high = draft.reachable()
    if ratio < low:
        raise BudgetError(
            f"A MAC ratio of {ratio:g} can't be reached on {draft.info.name} by {method}; "
            f"anything from {low:.3f} to {high:.3f} can."
        )
