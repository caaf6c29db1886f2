"""Baselines: the paper's static method with another score, or with the same number of patches in every block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from patchslim.evidence.scores import Score
from patchslim.hosts import HostInfo
from patchslim.methods.base import Fitted, register
from patchslim.methods.knob import OneKnob
from patchslim.methods.ps import PS, TuneEpochs
from patchslim.methods.task import Task
from patchslim.search.cost import Budget, MacCost
from patchslim.steps import Step


@dataclass(frozen=True)
class Baseline(PS):
    """A preset of `ps`."""

    tune_epochs: TuneEpochs = 0
    group: ClassVar[str] = "baselines"

    def __init_subclass__(cls) -> None:
        """What every docstring of a baseline ends with."""
        cls.__doc__ = f"{cls.__doc__}\n\nBlocks are not tuned unless tune_epochs says so.\nTake it for comparison."


@register("attention")
class Attention(Baseline):
    """A baseline: Algorithm 1 by the norm of a patch's column in its own block's attention map (the paper's "Attn")."""

    score: ClassVar[Score] = "attention"


@register("random")
class Random(Baseline):
    """A baseline: Algorithm 1 with a random order of patches in every block, drawn with the seed."""

    score: ClassVar[Score] = "random"


@register("radial")
class Radial(Baseline):
    """A baseline: Algorithm 1 that keeps a disc of patches around the centre of the image."""

    score: ClassVar[Score] = "radial"


@register("spread")
class Spread(Baseline):
    """A baseline: Algorithm 1 that keeps patches which are spread evenly, each next one far from those before it."""

    score: ClassVar[Score] = "spread"


@register("uniform")
class Uniform(OneKnob, Baseline):
    """The paper's uniform pruning (its Table 3): every block keeps the same number of patches, by the impact score."""

    title: ClassVar[str] = "Uniform pruning"

    @property
    def idle(self) -> Mapping[str, str]:
        """Patches are not added step by step."""
        return {**super().idle, "step": "every block keeps the same number of patches"}

    def knobs(self, info: HostInfo) -> Sequence[int]:
        """Patches per block, the most first."""
        return range(info.patches, 0, -1)

    def published(self, info: HostInfo, n: int) -> list[Step]:
        """n patches in every block."""
        return self.draft(info).steps(tuple(uniform_counts(info, n)), ())

    def at(self, task: Task, n: int) -> Fitted:
        """Which n: by Algorithm 1 with given counts."""
        counts = dict(enumerate(uniform_counts(task.info, n), start=1))
        limit = Budget(MacCost(self.draft(task.info)), None)
        return self.fitted(task, self.algorithm(task, limit).at_counts(counts, tune=bool(self.tune_epochs)))


def uniform_counts(info: HostInfo, n: int) -> list[int]:
    """n patches in every block; where only prefix tokens are read, none in the last."""
    return [*[n] * (info.depth - 1), n if info.reads_patches else 0]
