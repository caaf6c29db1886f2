"""`merge`: each image merges patches that say the same."""

from typing import Annotated, ClassVar

from torch import nn

from patchslim.evidence.distances import find_distances
from patchslim.hosts import HostInfo
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.task import Task
from patchslim.plan import steps_by
from patchslim.search import Draft
from patchslim.steps.merge import Merge as MergeStep
from patchslim.steps.merge import distance_channels


@register("merge")
class Merge(Method):
    """Each image merges patches that say the same, by a distance learnt from what the difference does to the output.

    It keeps the most accuracy of all methods, and needs no training.
    Take it unless you need the plainest graph or the last bit of speed at batch 1; then take cover or drop.
    """

    blocks: Annotated[int | None, "merge in at most so many blocks; none: any"] = 3

    group: ClassVar[str] = "ours"
    many_images: ClassVar[bool] = True

    def draft(self, info: HostInfo) -> Draft:
        """Steps that merge patches, as many as one likes."""
        channels = distance_channels(info)
        steps = steps_by(info, lambda n, drop: MergeStep(n=n, channels=channels, drop=drop))
        return Draft(info, steps, merges=True, most=self.blocks, method=self.name)

    def fit(self, task: Task) -> Fitted:
        """Learn the distances, then search where to merge how much."""
        distances = learnt_distances(task)
        plan, error = task.allocate(self.draft(task.info), distances)
        return task.fitted(plan, distances, errors={"readout": error})


def learnt_distances(task: Task) -> dict[int, nn.Module]:
    """The distances of all blocks that may choose, learnt once."""
    return task.once(
        "distances", lambda: find_distances(task.host, task.features, task.cache, task.seed, task.progress)
    )
