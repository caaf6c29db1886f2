"""`hvt`: hierarchical pooling (Pan et al., Scalable Vision Transformers with Hierarchical Pooling, ICCV 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from patchslim.errors import BudgetError
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs, steps_macs
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.task import Task
from patchslim.methods.tome import reads_only
from patchslim.plan import make_plan
from patchslim.steps import Step
from patchslim.steps.keep import Keep
from patchslim.steps.pool import KERNEL, Pool, pooled
from patchslim.steps.slice import Slice

MOST_POOLS = 4  # the paper's HVT-S-4


@register("hvt")
@dataclass(frozen=True)
class HVT(Method):
    """HVT: patches are max-pooled between stages, and a position embedding that learns is added to what is left.

    The places of the poolings are the knob, so MACs come in steps; without training it is far from usable.
    Take it for comparison.
    """

    readout_only: Annotated[bool, "the last block computes only what the head reads"] = False

    def fit(self, task: Task) -> Fitted:
        """The placement with the most MACs that fits; of equal ones the fewest poolings."""
        return task.meet(lambda ratio: self._at(task, ratio))

    def _at(self, task: Task, ratio: float) -> Fitted:
        info, whole = task.info, host_macs(task.info)
        known = {tuple(after): steps_macs(info, self.steps(info, after)) for after in placements(info)}
        fitting = {after: macs for after, macs in known.items() if macs <= int(ratio * whole)}
        if not fitting:
            least = min(known.values(), default=whole) / whole
            raise BudgetError(f"HVT with up to {MOST_POOLS} poolings takes at least {least:.3f} of the MACs.")
        after = max(fitting, key=lambda places: (fitting[places], -len(places)))
        return self.pooling(info, after)

    def pooling(self, info: HostInfo, after: Sequence[int]) -> Fitted:
        """HVT with poolings after some blocks (from 1)."""
        return Fitted(make_plan(info, self.steps(info, after)), detail={"pools_after": list(after)})

    def steps(self, info: HostInfo, after: Sequence[int]) -> list[Step]:
        """Every block computes what the pooling before it left."""
        steps: list[Step] = [Pool() if layer in after else Keep() for layer in range(1, info.depth + 1)]
        return [*steps[:-1], Slice(n=0)] if reads_only(self.readout_only, info, info.depth) else steps


def placements(info: HostInfo) -> list[list[int]]:
    """Blocks (from 1) after which patches are pooled: 1 to 4 stages of equal depth, from any block on."""
    found = []
    for pools in range(1, MOST_POOLS + 1):
        for first in range(1, info.depth):
            after = [first + (info.depth - first) * stage // pools for stage in range(pools)]
            distinct = sorted(set(after))
            if len(distinct) == pools and _fits(info, pools):
                found.append(distinct)
    return found


def _fits(info: HostInfo, pools: int) -> bool:
    left = info.patches
    for _ in range(pools):
        if left < KERNEL:
            return False
        left = pooled(left)
    return True
