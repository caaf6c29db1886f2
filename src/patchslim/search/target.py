"""What a user asks a search for: a tolerance, a share of the MACs, or a speed-up."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from patchslim.errors import BudgetError
from patchslim.timing.modes import MODES
from patchslim.timing.running import DTYPES
from patchslim.timing.stopwatch import Conditions

PAPERS_TOLERANCE = 0.01


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
