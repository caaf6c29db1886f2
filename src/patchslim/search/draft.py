"""What a search varies: plans of one kind, drafted from the patches that each block keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from patchslim.hosts import HostInfo
from patchslim.macs import host_macs, steps_macs
from patchslim.plan import SlimPlan, make_plan
from patchslim.search.schedule import Counts, Schedule
from patchslim.steps import Step

Drops = tuple[int, ...]  # blocks (from 1) that drop patches where others merge


@dataclass(frozen=True)
class Draft:
    """Steps, and a whole plan, for any patches per block."""

    info: HostInfo
    steps: Callable[[Counts, Drops], list[Step]]
    whole: Callable[[Counts, Drops], SlimPlan] | None = None  # where steps alone do not make a plan
    halves: bool = False  # a block removes at most half of its patches
    merges: bool = False  # some blocks may drop instead
    empties: bool = False  # a block may keep no patch at all
    most: int | None = None  # at most so many blocks remove patches; None: as many as pay
    fields: dict[str, Any] = field(default_factory=dict)  # of the plans

    def plan(self, counts: Counts, drops: Drops) -> SlimPlan:
        """The whole plan."""
        if self.whole is not None:
            return self.whole(counts, drops)
        return make_plan(self.info, self.steps(counts, drops), **self.fields)

    def sketch(self, counts: Counts) -> SlimPlan:
        """A plan for a clock, with patches that nobody chose: time does not depend on which."""
        steps = self.steps(counts, ())
        order = None
        if any(step.ordered and 0 < count < self.info.patches for step, count in zip(steps, counts, strict=True)):
            order = torch.randperm(self.info.patches, generator=torch.Generator().manual_seed(0)).tolist()
        return make_plan(self.info, steps, order, **self.fields)

    def schedule(self, multiple: int = 1) -> Schedule:
        """The blocks that may remove patches, and how many each can."""
        return Schedule(self.info, self.halves, multiple)

    def reachable(self) -> tuple[float, float]:
        """The least and the largest MAC ratio that a plan can have."""
        schedule = self.schedule()
        low, high = (
            steps_macs(self.info, self.steps(counts, ())) / host_macs(self.info)
            for counts in (self.fewest(), schedule.everything)
        )
        return low, high

    def fewest(self) -> Counts:
        """The fewest patches per block that a plan can keep."""
        if self.empties:
            return (1 if self.info.reads_patches else 0,) * self.info.depth
        return self.schedule().least
