"""Methods with one knob, as most of other papers are: it is turned until the network fits a MAC ratio."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from patchslim.errors import BudgetError
from patchslim.hosts import Host, HostInfo
from patchslim.macs import steps_macs
from patchslim.methods.base import Fitted, Method
from patchslim.methods.task import Task
from patchslim.plan import make_plan
from patchslim.steps import Step
from patchslim.steps.slice import Slice

RATES = 10_000  # steps of a keep rate between everything and nothing
ReadoutOnly = Annotated[bool, "the last block computes only what the head reads"]


@dataclass(frozen=True)
class OneKnob(Method):
    """A method whose settings of one knob are each cheaper than the one before."""

    knob: ClassVar[str] = "keep_rate"  # the name of the setting in what is told of a plan
    readout_only = False  # a setting where a method has it

    @property
    def title(self) -> str:
        """What its paper calls it."""
        return type(self).__name__

    def unsuitable(self, host: Host) -> str | None:
        """Why a host can't be slimmed so; None if it can."""
        return None

    def knobs(self, info: HostInfo) -> Sequence[Any]:
        """The settings: keep rates from all to nothing, unless a method has others."""
        return [rate / RATES for rate in range(RATES, 0, -1)]

    def published(self, info: HostInfo, knob: Any) -> list[Step]:
        """The network with a setting, as the paper has it."""
        raise NotImplementedError

    def steps(self, info: HostInfo, knob: Any) -> list[Step]:
        """The same; with `readout_only` the last block computes prefix tokens alone, where no others are read."""
        steps = self.published(info, knob)
        return [*steps[:-1], self.last(steps[-1])] if self.reads_only(info) else steps

    def reads_only(self, info: HostInfo) -> bool:
        """Whether the last block computes prefix tokens alone."""
        return self.readout_only and not info.reads_patches

    def last(self, step: Step) -> Step:
        """What becomes of the last block's step then."""
        return Slice(n=0)

    def at(self, task: Task, knob: Any) -> Fitted:
        """The slim model with a setting."""
        return Fitted(make_plan(task.info, self.steps(task.info, knob)), detail={self.knob: knob})

    def within(self, task: Task, ratio: float) -> Fitted:
        """The first setting that fits."""
        info = task.info
        return self.at(task, task.first(self.knobs(info), lambda own: self.macs(info, own), ratio, self.title))

    def macs(self, info: HostInfo, knob: Any) -> int:
        """MACs with a setting."""
        return steps_macs(info, self.steps(info, knob))

    def fit(self, task: Task) -> Fitted:
        """The first setting within the limit, whatever that is."""
        reason = self.unsuitable(task.host)
        if reason is not None:
            raise BudgetError(f"{reason}.")
        return task.meet(lambda ratio: self.within(task, ratio))


def stages(info: HostInfo) -> list[int]:
    """The three blocks (from 1) in which EViT and DynamicViT remove patches: those that begin the later quarters."""
    return sorted({round(info.depth * quarter / 4) + 1 for quarter in (1, 2, 3)} - {info.depth + 1, 1})
