"""`ps`: the paper's static method, Algorithm 1; and the scores that it is compared with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from torch import Tensor

from patchslim.errors import MethodError
from patchslim.evidence.network import Partial
from patchslim.evidence.scores import Score
from patchslim.hosts import Host, HostInfo
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.task import Task
from patchslim.plan import SlimPlan, Static, static_plan, static_steps
from patchslim.search import Draft
from patchslim.search.cost import Budget
from patchslim.search.topdown import TopDown, bisect_tolerance, spend_rest

TuneEpochs = Annotated[int, "epochs of block tuning on cached features"]


@register("ps")
class PS(Method):
    """The paper's static method: Algorithm 1 prunes from the last block to the first by the impact score, tunes each
    block, and adds patches until the error of the next block is within the tolerance.

    With carry=true removed patches stay as keys and values, Eq. 2 to the letter.
    Take it to reproduce the paper; merge, cover and drop keep more accuracy.
    """

    step: Annotated[int, "r': patches added at a time"] = 10
    tune_epochs: TuneEpochs = 3
    learning_rate: Annotated[float, "of block tuning"] = 5e-5
    carry: Annotated[bool, "removed patches stay as keys and values"] = False

    group: ClassVar[str] = "the paper"
    score: ClassVar[Score] = "impact"

    def __post_init__(self) -> None:
        if self.step < 1 or self.tune_epochs < 0 or not 0 < self.learning_rate < float("inf"):
            raise MethodError(
                "step has to be at least 1, tune_epochs at least 0 and learning_rate a number above 0, not "
                f"{self.step}, {self.tune_epochs} and {self.learning_rate}."
            )

    @property
    def idle(self) -> Mapping[str, str]:
        """Only tuned blocks learn."""
        return {} if self.tune_epochs else {"learning_rate": "tune_epochs is 0"}

    def draft(self, info: HostInfo) -> Draft:
        """Slices, or patches that are carried along."""
        kind: Static = "carry" if self.carry else "slice"
        return Draft(info, lambda own, drops: static_steps(info, own, kind), empties=True, method=self.name)

    def algorithm(self, task: Task, limit: Budget) -> TopDown:
        """Algorithm 1 on the task."""
        settings = (self.score, self.step, self.tune_epochs, self.learning_rate, self.carry, task.seed)
        return TopDown(task.host, task.features, task.cache, task.progress, limit.cost, *settings)

    def fit(self, task: Task) -> Fitted:
        """Algorithm 1 at the tolerance; for a ratio the tolerance is bisected with untuned blocks."""
        limit = task.limit(self.draft(task.info))
        top_down, tune, allowed = self.algorithm(task, limit), bool(self.tune_epochs), task.target.allowed
        if allowed is not None:
            partial, tolerance = top_down.search(allowed, tune), allowed
        else:
            partial, tolerance = self._within(task, top_down, limit)
            # Bisecting with tuned blocks would tune every candidate of every step. Counts come from untuned errors
            # instead, and tuning runs once, at those counts: docs/notebook/decisions.md has the comparison.
            partial = top_down.at_counts(partial.counts, tune=True) if tune else partial
        return self.fitted(task, partial, tolerance=tolerance)

    def fitted(self, task: Task, partial: Partial, **detail: Any) -> Fitted:
        """What Algorithm 1 found."""
        errors = {str(layer): error for layer, error in sorted(partial.errors.items())}
        return Fitted(self._plan(task.info, partial), tuned_weights(task.host, partial), errors, detail=detail)

    def _within(self, task: Task, top_down: TopDown, limit: Budget) -> tuple[Partial, float]:
        def find(ratio: float) -> tuple[SlimPlan, tuple[Partial, float]]:
            tolerance, partial = bisect_tolerance(top_down, ratio)
            counts = spend_rest(task.info, limit.cost, partial.counts, partial.errors, ratio)
            partial = replace(partial, counts=counts)
            return self._plan(task.info, partial), (partial, tolerance)

        return limit.meet(find)[1]

    def _plan(self, info: HostInfo, partial: Partial) -> SlimPlan:
        kept = [partial.order[: partial.counts[layer]] for layer in sorted(partial.counts)]
        return static_plan(info, kept, "carry" if self.carry else "slice", method=self.name)


def tuned_weights(host: Host, partial: Partial) -> Mapping[str, Tensor]:
    """Weights of tuned blocks under the host's names."""
    names = {id(module): name for name, module in host.model.named_modules()}
    return {
        f"{names[id(host.blocks[layer - 1])]}.{key}": value.detach().clone()
        for layer, block in sorted(partial.tuned.items())
        for key, value in block.state_dict().items()
    }
