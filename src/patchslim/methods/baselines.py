"""Baselines: the paper's static method with another score, or with the same number of patches in every block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from patchslim.evidence.scoring import Score
from patchslim.hosts import HostInfo
from patchslim.macs import steps_macs
from patchslim.methods.base import Fitted, register
from patchslim.methods.ps import PS, TuneEpochs
from patchslim.methods.task import Task
from patchslim.plan import static_steps
from patchslim.search.cost import MacCost, PlainBudget


@register("attention")
@dataclass(frozen=True)
class Attention(PS):
    """A baseline: Algorithm 1 by the norm of a patch's column in its own block's attention map (the paper's "Attn").

    Blocks are not tuned unless tune_epochs says so.
    Take it for comparison.
    """

    tune_epochs: TuneEpochs = 0
    group: ClassVar[str] = "baselines"
    score: ClassVar[Score] = "attention"


@register("random")
@dataclass(frozen=True)
class Random(PS):
    """A baseline: Algorithm 1 with a random order of patches in every block, drawn with the seed.

    Blocks are not tuned unless tune_epochs says so.
    Take it for comparison.
    """

    tune_epochs: TuneEpochs = 0
    group: ClassVar[str] = "baselines"
    score: ClassVar[Score] = "random"


@register("radial")
@dataclass(frozen=True)
class Radial(PS):
    """A baseline: Algorithm 1 that keeps a disc of patches around the centre of the image.

    Blocks are not tuned unless tune_epochs says so.
    Take it for comparison.
    """

    tune_epochs: TuneEpochs = 0
    group: ClassVar[str] = "baselines"
    score: ClassVar[Score] = "radial"


@register("spread")
@dataclass(frozen=True)
class Spread(PS):
    """A baseline: Algorithm 1 that keeps patches which are spread evenly, each next one far from those before it.

    Blocks are not tuned unless tune_epochs says so.
    Take it for comparison.
    """

    tune_epochs: TuneEpochs = 0
    group: ClassVar[str] = "baselines"
    score: ClassVar[Score] = "spread"


@register("uniform")
@dataclass(frozen=True)
class Uniform(PS):
    """The paper's uniform pruning (its Table 3): every block keeps the same number of patches, by the impact score.

    Blocks are not tuned unless tune_epochs says so.
    Take it for comparison.
    """

    tune_epochs: TuneEpochs = 0
    group: ClassVar[str] = "baselines"

    def fit(self, task: Task) -> Fitted:
        """The most patches per block that fit."""
        return task.meet(lambda ratio: self._at(task, ratio))

    def _at(self, task: Task, ratio: float) -> Fitted:
        info = task.info

        def macs(n: int) -> int:
            return steps_macs(info, static_steps(info, uniform_counts(info, n), "slice"))

        n = task.first(range(info.patches, 0, -1), macs, ratio, "Uniform pruning")
        limit = PlainBudget(MacCost(self.draft(info)), ratio)
        counts = dict(enumerate(uniform_counts(info, n), start=1))
        partial = self.algorithm(task, limit).at_counts(counts, tune=bool(self.tune_epochs))
        errors = {str(layer): partial.errors[layer] for layer in sorted(partial.errors)}
        return Fitted(self._plan(info, partial), errors=errors)


def uniform_counts(info: HostInfo, n: int) -> list[int]:
    """n patches in every block; where only prefix tokens are read, none in the last."""
    return [*[n] * (info.depth - 1), n if info.reads_patches else 0]
