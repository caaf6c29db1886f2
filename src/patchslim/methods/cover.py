"""`cover`: the same patches stay for all images, and the others join them."""

from typing import Annotated, ClassVar

from patchslim.evidence.coverage import CoverageSets
from patchslim.hosts import HostInfo
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.merge import learnt_distances
from patchslim.methods.task import Task
from patchslim.plan import SlimPlan, make_plan, order_of, steps_by
from patchslim.search import Draft, Drops
from patchslim.search.schedule import Counts
from patchslim.steps.cover import Cover as CoverStep
from patchslim.steps.merge import distance_channels
from patchslim.steps.slice import Slice


@register("cover")
class Cover(Method):
    """The same patches stay for all images, those that cover the others best; each other one joins, in the image at
    hand, the one nearest to it by a distance learnt from what the difference does to the output.

    Accuracy and speed lie between merge and drop.
    Take it where the graph must have no sort, as for some compilers.
    """

    blocks: Annotated[int | None, "merge in at most so many blocks, where these can remove enough; none: any"] = 3

    group: ClassVar[str] = "ours"

    def draft(self, info: HostInfo, sets: CoverageSets | None = None) -> Draft:
        """Steps that join patches; whole plans need the sets."""

        def plan(counts: Counts, drops: Drops) -> SlimPlan:
            assert sets is not None
            return make_plan(info, steps(counts, drops), order_of(sets.kept(counts), info.patches))

        channels = distance_channels(info)
        steps = steps_by(info, lambda n, drop: Slice(n=n) if drop else CoverStep(n=n, channels=channels))
        return Draft(info, steps, plan, merges=True, most=self.blocks, method=self.name)

    def fit(self, task: Task) -> Fitted:
        """Learn the distances, find which patches cover the others by them, then how many each block keeps."""
        distances = learnt_distances(task)
        sets = task.once("coverage", lambda: CoverageSets(task.host, task.features, distances))
        plan, error = task.allocate(self.draft(task.info, sets), distances)
        return task.fitted(plan, distances, errors={"readout": error})
