"""Plans drawn instead of searched for, where only speed counts: time does not depend on which patches leave.

Counts follow the shape of plans that were searched for, by method and number of merging blocks, stretched to the ratio:
the fewer MACs, the earlier patches leave, and the more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from benchmarks.inputs import Chosen, noise
from patchslim.data import tensor_images
from patchslim.errors import BudgetError
from patchslim.hosts import HostInfo, open_host
from patchslim.macs import host_macs, plan_macs
from patchslim.methods import Power, Task, fit, model_of
from patchslim.plan import SlimPlan, make_plan
from patchslim.search import Target
from patchslim.slimmed import assembled_

USUAL = 0.55  # of the MACs
# Shares of the patches that each of twelve blocks computes, in DeiT-Ti plans at that ratio.
STATIC = (0.72, 0.72, 0.71, 0.65, 0.59, 0.57, 0.56, 0.54, 0.54, 0.54, 0.48)
JOINING = (1.0, 1.0, 1.0, 0.78, 0.67, 0.51, 0.36, 0.36, 0.30, 0.23, 0.21)  # others join those that stay
EVERY = (1.0, 0.93, 0.93, 0.83, 0.72, 0.56, 0.37, 0.31, 0.27, 0.23, 0.23)  # each image's own, in nine blocks
FEW = {  # others join, in so many blocks
    1: (1.0,) * 4 + (0.41,) * 7,
    2: (1.0,) * 4 + (0.50,) * 3 + (0.25,) * 4,
    3: (1.0,) * 4 + (0.556,) * 2 + (0.372,) + (0.230,) * 4,
    4: (1.0,) * 4 + (0.60, 0.51, 0.36, 0.36) + (0.21,) * 3,
}
FLAT = (0.5,) * 11  # the same in every block
HALVINGS = 40
IMAGES = 4  # of nothing, for methods that learn: after so many steps no two of VTP's gates are alike


def shape_of(chosen: Chosen) -> Sequence[float]:
    """How patches leave in plans of a method."""
    few = getattr(chosen.method, "blocks", None)
    if few in FEW:
        return FEW[few]
    return {"merge": EVERY, "predict": EVERY, "cover": JOINING, "uniform": FLAT}.get(chosen.name, STATIC)


def counts_at(info: HostInfo, shape: Sequence[float], macs: Callable[[list[int]], int], ratio: float) -> list[int]:
    """Patches per block within a MAC ratio: the shape's removals, stretched."""
    last = len(shape) - 1
    pace = last / max(1, info.depth - 2) * USUAL / ratio
    gone = [1 - shape[min(last, round(block * pace))] for block in range(info.depth - 1)]

    def counts(stretch: float) -> list[int]:
        left = [info.patches]
        for share in gone:
            left.append(max(1, min(left[-1], round(info.patches * (1 - stretch * share)))))
        return [*left[1:], left[-1] if info.reads_patches else 0]

    budget, outside, inside = ratio * host_macs(info), 0.0, 1 / min(share for share in gone if share)
    if macs(counts(inside)) > budget:
        raise BudgetError(f"No plan of this shape comes down to {ratio:g} of {info.name}'s MACs.")
    for _ in range(HALVINGS):
        middle = (outside + inside) / 2
        outside, inside = (outside, middle) if macs(counts(middle)) <= budget else (middle, inside)
    return counts(inside)


def drawn_plan(info: HostInfo, chosen: Chosen, ratio: float, counts: Sequence[int] | None = None) -> SlimPlan:
    """A plan with given counts, or with counts of the method's usual shape."""

    def macs(own: list[int]) -> int:
        return plan_macs(info, sketch(info, chosen.method, own))

    return sketch(info, chosen.method, counts or counts_at(info, shape_of(chosen), macs, ratio))


def sketch(info: HostInfo, method: Any, counts: Sequence[int]) -> SlimPlan:
    """A plan with so many patches per block; PoWER keeps at least one in each."""
    if isinstance(method, Power):
        return make_plan(info, method.steps(info, [max(1, count) for count in counts]))
    plan: SlimPlan = method.sketch(info, counts)
    return plan


def drawn_model(host: nn.Module, chosen: Chosen, ratio: float, counts: Sequence[int] | None = None) -> nn.Module:
    """A model to be timed: what its steps own is untrained.

    A method without a sketch is fitted to images of nothing, for one epoch: what it learns does not matter to a clock.
    """
    info, method = open_host(host).info, chosen.method
    if getattr(method, "threshold", False):
        raise BudgetError("What a threshold computes depends on the images; time its run with `patchslim bench`.")
    images = tensor_images(noise(info, IMAGES, next(host.parameters()).device))
    task = Task.of(host, images, Target(macs=ratio), batch_size=1)
    if isinstance(method, Power) or (hasattr(method, "draft") and method.draft(info) is not None):
        return assembled_(task.host, drawn_plan(task.info, chosen, ratio, counts)).eval()
    quick = {"epochs": 1} if hasattr(method, "epochs") else {}
    return model_of(fit(replace(method, **quick), task), host)
