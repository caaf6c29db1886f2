"""The settings of a search."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from patchslim.errors import BudgetError
from patchslim.plan import Removed

Score = Literal["impact", "attention", "random", "radial", "uniform"]
SCORES: tuple[str, ...] = get_args(Score)
POLICIES: tuple[str, ...] = get_args(Removed)


@dataclass(frozen=True)
class SearchConfig:
    """What to search for, and how. Give a tolerance or a MAC ratio; neither means the paper's tolerance of 0.01."""

    tolerance: float | None = None  # ε: relative error of a block's reconstruction
    target_macs: float | None = None  # MACs of the slim model over the host's
    score: Score = "impact"
    removed: Removed = "drop"
    step: int = 10  # r': patches added at a time
    tune_epochs: int = 3  # epochs of block tuning on cached features
    learning_rate: float = 5e-5  # of block tuning
    batch_size: int = 32
    cache_gib: float = 2.0  # bound on cached features; past it they are computed again
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tolerance is not None and self.target_macs is not None:
            raise BudgetError("Give a tolerance or a MAC ratio, not both.")
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise BudgetError(f"The tolerance is a relative error and can't be {self.tolerance}; try 0.01.")
        if self.target_macs is not None and not 0 < self.target_macs < 1:
            raise BudgetError(f"The MAC ratio has to lie between 0 and 1, not at {self.target_macs}; try 0.6.")
        for name, low in (("step", 1), ("tune_epochs", 0), ("batch_size", 1)):
            if getattr(self, name) < low:
                raise BudgetError(f"{name} has to be at least {low}, not {getattr(self, name)}.")
        if not 0 < self.learning_rate < math.inf:
            raise BudgetError(f"learning_rate has to be a number above 0, not {self.learning_rate}.")
        if not self.cache_gib >= 0:
            raise BudgetError(f"cache_gib can't be below 0, as {self.cache_gib} is.")
        if self.score not in SCORES:
            raise BudgetError(f"There is no score {self.score!r}; choose one of {', '.join(SCORES)}.")
        if self.removed not in POLICIES:
            raise BudgetError(f"Removed patches can't {self.removed!r}; choose one of {', '.join(POLICIES)}.")

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON-able values."""
        return asdict(self)
