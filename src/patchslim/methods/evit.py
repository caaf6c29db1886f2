"""`evit`: token reorganisation (Liang et al., Not All Patches Are What You Need, ICLR 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from patchslim.errors import BudgetError
from patchslim.hosts import HostInfo
from patchslim.macs import steps_macs
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.rates import rates, stages
from patchslim.methods.task import Task
from patchslim.methods.tome import reads_only
from patchslim.plan import make_plan
from patchslim.steps import Step
from patchslim.steps.evit import EViT as EViTStep
from patchslim.steps.keep import Keep
from patchslim.steps.slice import Slice


@register("evit")
@dataclass(frozen=True)
class EViT(Method):
    """EViT: in three blocks the patches that the class token attends to most stay, and the others fuse into one token.

    One keep rate serves the three blocks that begin the later quarters of the network; it needs no training.
    Take it for comparison.
    """

    readout_only: Annotated[bool, "the last block computes only what the head reads"] = False

    def fit(self, task: Task) -> Fitted:
        """The largest keep rate that fits."""
        if not task.info.reads_class:
            raise BudgetError(f"EViT goes by the class token's attention, and {task.info.name} reads no class token.")
        return task.meet(lambda ratio: self._at(task, ratio))

    def _at(self, task: Task, ratio: float) -> Fitted:
        info = task.info
        rate = task.first(rates(), lambda own: steps_macs(info, self.steps(info, own)), ratio, "EViT")
        return Fitted(make_plan(info, self.steps(info, rate)), detail={"keep_rate": rate})

    def steps(self, info: HostInfo, rate: float) -> list[Step]:
        """⌈rate · incoming⌉ patches and the fused token stay in each block that reorganises."""
        left, steps = info.patches, list[Step]()
        for layer in range(1, info.depth + 1):
            kept = math.ceil(rate * left)
            fuses = layer in stages(info) and kept < left
            if reads_only(self.readout_only, info, layer):
                steps.append(Slice(n=0))
            else:
                steps.append(EViTStep(n=kept + 1) if fuses else Keep())
            left = kept + 1 if fuses else left
        return steps
