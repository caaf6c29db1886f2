"""`cover`: the same patches stay for all images, and the others join them."""

from typing import Annotated, ClassVar

from patchslim.evidence.coverage import CoverageSets
from patchslim.hosts import HostInfo
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.task import Task
from patchslim.plan import SlimPlan, static_plan, steps_by
from patchslim.search import Draft, Drops
from patchslim.search.schedule import Counts
from patchslim.steps.cover import Cover as CoverStep
from patchslim.steps.slice import Slice


@register("cover")
class Cover(Method):
    """The same patches stay for all images, those that cover the others best; each other one joins, in the image at
    hand, the patch that it resembles most.

    Accuracy and speed lie between merge and drop.
    Take it where the graph must have no sort: exported models, compilers that know few operators.
    """

    blocks: Annotated[int | None, "merge in at most so many blocks, where these can remove enough; none: any"] = 3

    group: ClassVar[str] = "ours"

    def draft(self, info: HostInfo, sets: CoverageSets | None = None) -> Draft:
        """Steps that join patches; whole plans need the sets."""

        def plan(counts: Counts, drops: Drops) -> SlimPlan:
            assert sets is not None
            return static_plan(info, sets.kept(counts), "cover", drops)

        steps = steps_by(info, lambda n, drop: Slice(n=n) if drop else CoverStep(n=n))
        return Draft(info, steps, plan, merges=True, most=self.blocks, method=self.name)

    def fit(self, task: Task) -> Fitted:
        """Find which patches cover the others, then how many each block keeps."""
        sets = task.once("coverage", lambda: CoverageSets(task.host, task.features))
        plan, error = task.allocate(self.draft(task.info, sets))
        return Fitted(plan, errors={"readout": error})
