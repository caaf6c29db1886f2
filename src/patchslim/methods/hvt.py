"""`hvt`: hierarchical pooling (Pan et al., Scalable Vision Transformers with Hierarchical Pooling, ICCV 2021)."""

from collections.abc import Sequence
from typing import ClassVar

from patchslim.hosts import HostInfo
from patchslim.methods.base import register
from patchslim.methods.knob import OneKnob, ReadoutOnly
from patchslim.steps import Step
from patchslim.steps.keep import Keep
from patchslim.steps.pool import KERNEL, Pool, pooled

MOST_POOLS = 4  # the paper's HVT-S-4


@register("hvt")
class HVT(OneKnob):
    """HVT: patches are max-pooled between stages, and a position embedding that learns is added to what is left.

    The places of the poolings are the knob, so MACs come in steps; without training it is far from usable.
    Take it for comparison.
    """

    readout_only: ReadoutOnly = False

    knob: ClassVar[str] = "pools_after"
    title: ClassVar[str] = f"HVT with up to {MOST_POOLS} poolings"

    def knobs(self, info: HostInfo) -> list[list[int]]:
        """Placements of the poolings, the dearest first; of equal ones the fewest poolings."""
        return sorted(placements(info), key=lambda after: (-self.macs(info, after), len(after)))

    def published(self, info: HostInfo, after: Sequence[int]) -> list[Step]:
        """Poolings after some blocks (from 1); every block computes what the pooling before it left."""
        return [Pool() if layer in after else Keep() for layer in range(1, info.depth + 1)]


def placements(info: HostInfo) -> list[list[int]]:
    """Blocks (from 1) after which patches are pooled: 1 to 4 stages of equal depth, from any block on."""
    found, left = [], info.patches
    for pools in range(1, MOST_POOLS + 1):
        if left < KERNEL:
            break
        left = pooled(left)
        for first in range(1, info.depth):
            after = sorted({first + (info.depth - first) * stage // pools for stage in range(pools)})
            if len(after) == pools:
                found.append(after)
    return found
