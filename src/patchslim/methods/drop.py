"""`drop`: the same patches leave in all images."""

from typing import ClassVar

from patchslim.hosts import HostInfo
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.task import Task
from patchslim.plan import static_steps
from patchslim.search import Draft
from patchslim.search.greedy import Greedy


@register("drop")
class Drop(Method):
    """The same patches leave in all images, one after the other, each time the one whose removal changes the output
    least.

    Blocks only slice: the plainest graph and the most speed, at every batch size, but more accuracy is lost.
    Take it for edge devices and small batches, and fine-tune afterwards.
    """

    group: ClassVar[str] = "ours"

    def draft(self, info: HostInfo) -> Draft:
        """Slices."""
        return Draft(info, lambda own, drops: static_steps(info, own, "slice"), empties=True, method=self.name)

    def fit(self, task: Task) -> Fitted:
        """Greedy reconstruction by Taylor importance."""
        limit = task.limit(self.draft(task.info))
        greedy = Greedy(task.host, task.features, task.cache, task.progress, limit, task.seed)
        plan, error = greedy.search(task.target.allowed)
        return Fitted(plan, errors={"readout": error})
