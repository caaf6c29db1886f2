"""`tome`: Token Merging (Bolya et al., Token Merging: Your ViT But Faster, ICLR 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from patchslim.hosts import HostInfo
from patchslim.macs import steps_macs
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.task import Task
from patchslim.plan import make_plan
from patchslim.steps import Step
from patchslim.steps.keep import Keep
from patchslim.steps.slice import Slice
from patchslim.steps.tome import ToMe as ToMeStep
from patchslim.steps.tome import most_pairs


@register("tome")
@dataclass(frozen=True)
class ToMe(Method):
    """Token Merging: r tokens merge in every block between attention and MLP, by bipartite matching on keys.

    The MAC ratio is met with r in the first blocks and r - 1 in the others; it needs no training.
    Take it for comparison: merge keeps more accuracy at the same MACs.
    """

    readout_only: Annotated[bool, "the last block computes only what the head reads"] = False

    def fit(self, task: Task) -> Fitted:
        """The fewest merges that fit."""
        return task.meet(lambda ratio: self._at(task, ratio))

    def _at(self, task: Task, ratio: float) -> Fitted:
        info = task.info
        schedules = [
            [r] * blocks + [r - 1] * (info.depth - blocks)
            for r in range(1, info.patches // 2 + 1)
            for blocks in range(1, info.depth + 1)
        ]
        removals = task.first(schedules, lambda own: steps_macs(info, self.steps(info, own)), ratio, "ToMe")
        return Fitted(make_plan(info, self.steps(info, removals)), detail={"r": removals})

    def steps(self, info: HostInfo, removals: Sequence[int]) -> list[Step]:
        """r given for every block; no more than half of a block's patches merge."""
        left, steps = info.patches, list[Step]()
        for layer, wanted in enumerate(removals, start=1):
            r = min(wanted, most_pairs(left))
            if reads_only(self.readout_only, info, layer):
                steps.append(Slice(n=0))
            else:
                steps.append(ToMeStep(r=r) if r else Keep())
            left -= r
        return steps


def reads_only(readout_only: bool, info: HostInfo, layer: int) -> bool:
    """Whether block `layer` (from 1) computes prefix tokens alone."""
    return readout_only and layer == info.depth and not info.reads_patches
