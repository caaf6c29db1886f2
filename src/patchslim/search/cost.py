"""What plans cost, and limits on it: all that a search has to know of a budget, in MACs or in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from patchslim.hosts import HostInfo
from patchslim.macs import macs_of_counts
from patchslim.plan import DistanceSpec, Groups, PredictorKind, PredictorSpec, Removed, Select, SlimPlan
from patchslim.search.config import Distance, SearchConfig
from patchslim.slim.chooser import distance_channels
from patchslim.slim.predictor import hidden_width

Found = TypeVar("Found")
Find = Callable[
    [float], tuple[SlimPlan, Found]
]  # a share of the host's cost → a plan within it, and what else is known


class Cost(Protocol):
    """What a plan of one kind costs by its patches per block: in MACs, or in as many MACs as the host takes the same
    time for. The host costs its MACs either way, so a search need not know which it is."""

    @property
    def grain(self) -> int:
        """The device likes tokens, prefix included, by multiples of this."""

    @property
    def unit(self) -> str:
        """What it counts; a ledger keeps what depends on it apart."""

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
    """MACs, counted in closed form."""

    info: HostInfo
    removed: Removed = "drop"
    select: Select = "static"
    predictor: PredictorSpec | None = None
    distance: DistanceSpec | None = None
    groups: Groups | None = None
    grain: ClassVar[int] = 1
    unit: ClassVar[str] = "MACs"

    @classmethod
    def under(cls, info: HostInfo, config: SearchConfig) -> MacCost:
        """Of plans as the settings want them."""
        predictor = predictor_of(info, config.select, config.predictor)
        return cls(info, config.removed, config.select, predictor, distance_of(info, config.distance), config.groups)

    def of(self, counts: Sequence[int]) -> int:
        """MACs per image."""
        return macs_of_counts(self.info, counts, self.removed, select=self.select, **self.chooser)

    @property
    def chooser(self) -> dict[str, Any]:
        """What `choice_macs` has to know of what patches are chosen by."""
        return {"groups": self.groups, "predictor": self.predictor, "distance": self.distance}


@dataclass(frozen=True)
class PlainBudget:
    """A limit on a cost that is taken at its word, as that of MACs can be: what is found within it meets it."""

    cost: Cost
    ratio: float | None

    @classmethod
    def under(cls, info: HostInfo, config: SearchConfig) -> PlainBudget:
        """The MACs that the settings ask for."""
        return cls(MacCost.under(info, config), config.target_macs)

    def meet(self, find: Find[Found]) -> tuple[SlimPlan, Found]:
        """What is found at the ratio."""
        assert self.ratio is not None
        return find(self.ratio)


def predictor_of(info: HostInfo, select: Select, kind: PredictorKind) -> PredictorSpec | None:
    """The G that a plan will have, as yet untrained; None where patches are not predicted."""
    if select != "predicted":
        return None
    return PredictorSpec(kind=kind, hidden=hidden_width(info, kind), weights="")


def distance_of(info: HostInfo, kind: Distance | None) -> DistanceSpec | None:
    """The distance that a plan will have, as yet unknown; None where patches are matched by keys or not at all."""
    return DistanceSpec(channels=distance_channels(info), weights="") if kind == "effect" else None


def snapped(info: HostInfo, grain: int, count: int) -> int:
    """The least number of patches from `count` on whose tokens are a multiple of the grain; all at most, 0 stays 0.

    Up, not down: where a device takes tokens by multiples, those that fill one up cost nothing.
    """
    if count == 0:
        return 0
    return min(info.patches, -(-(info.prefix_tokens + count) // grain) * grain - info.prefix_tokens)
