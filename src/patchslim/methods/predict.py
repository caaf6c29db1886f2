"""`predict`: a small module G says which patches of an image matter."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from torch import nn

from patchslim.evidence.scores import Score
from patchslim.evidence.selectors import SelectorTraining
from patchslim.hosts import HostInfo
from patchslim.macs import host_macs, plan_macs
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.task import Task
from patchslim.plan import SlimPlan, steps_by
from patchslim.search import Draft
from patchslim.search.cost import Budget
from patchslim.search.measured import measure
from patchslim.search.speed import SpeedBudget
from patchslim.search.threshold import calibrate, with_thresholds
from patchslim.steps.predict import Predict as PredictStep
from patchslim.steps.selector import Selector, SelectorKind, hidden_width

Removed = Annotated[Literal["merge", "drop"], "what becomes of the other patches"]


@register("predict")
class Predict(Method):
    """A small module G in each block says which patches of the image matter; the others merge into a near twin, or
    leave.

    With threshold=true images keep different numbers of patches: easy images take less time, and batches run packed.
    Take it for single images on a CPU or GPU where the average cost counts; such a plan can't be exported.
    """

    removed: Removed = "merge"
    threshold: Annotated[bool, "images keep as many patches as they need; the others leave"] = False
    blocks: Annotated[int | None, "choose in at most so many blocks; none: any"] = None
    epochs: Annotated[int, "over the images, in which G learns"] = 60

    many_images: ClassVar[bool] = True
    group: ClassVar[str] = "ours"
    score: ClassVar[Score] = "taylor"  # what G learns to say

    @property
    def idle(self) -> Mapping[str, str]:
        """With a threshold nothing merges."""
        leave = self.threshold and self.removed == "merge"
        return {"removed": "with threshold=true the other patches leave"} if leave else {}

    @property
    def merges(self) -> bool:
        """Whether the others merge; with a threshold they leave."""
        return self.removed == "merge" and not self.threshold

    @property
    def selector(self) -> SelectorKind:
        """A threshold compares images, so that G must not know the image's average patch."""
        return "mlp" if self.threshold else "context"

    def draft(self, info: HostInfo) -> Draft:
        """Steps that ask G."""
        kind, hidden = self.selector, hidden_width(info, self.selector)
        steps = steps_by(
            info, lambda n, drop: PredictStep(n=n, merge=self.merges and not drop, selector=kind, hidden=hidden)
        )
        return Draft(info, steps, merges=self.merges, most=self.blocks, method=self.name)

    def fit(self, task: Task) -> Fitted:
        """G learns on the whole network, counts are searched with it, and it learns again on the slimmed network."""
        info, draft = task.info, self.draft(task.info)
        training = SelectorTraining(
            task.host, task.features, task.cache, task.progress, self.selector, self.score, self.epochs, task.seed
        )
        limit = task.limit(draft)
        # How fast it is with thresholds is known only once they are there; until then, blocks' own times will do.
        first = Budget(limit.cost, limit.ratio) if self.threshold else limit
        everything = draft.schedule().everything
        read = [layer for layer, count in enumerate(everything, start=1) if count]
        selectors = training.fit(draft.plan(everything, ()), read)
        plan, _ = task.allocate(draft, selectors, first)
        ends_alike = [info.depth] if self.threshold and info.reads_patches else []
        selectors = training.fit(plan, sorted({*plan.choosing, *ends_alike}), begin=selectors)
        if self.threshold:
            plan = self._with_thresholds(task, plan, selectors, limit)
        error = measure(task.host, task.features, plan, selectors)
        return task.fitted(plan, selectors, errors={"readout": error})

    def _with_thresholds(
        self, task: Task, plan: SlimPlan, selectors: Mapping[int, Selector], limit: Budget
    ) -> SlimPlan:
        """The plan with thresholds that take as many MACs, or as long, as was asked for; else as many as the plan."""
        whole, parts = host_macs(task.info), dict[int, nn.Module](selectors)
        own = plan_macs(task.info, plan) / whole
        drafted = with_thresholds(plan, self.selector, hidden_width(task.info, self.selector))

        def find(ratio: float) -> tuple[SlimPlan, None]:
            return calibrate(task.host, task.features, drafted, parts, int(ratio * whole)), None

        if not isinstance(limit, SpeedBudget):
            return find(own if task.target.macs is None else task.target.macs)[0]
        images = next(pixels for pixels, _ in task.images.batches(task.target.batch_size))
        watch = task.stopwatch(rectangular=False)

        def timer(found: SlimPlan) -> dict[str, Any]:
            return watch.whole(found, parts, images)

        return limit.meet(find, own, timer)[0]
