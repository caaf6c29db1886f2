"""`tome`: Token Merging (Bolya et al., Token Merging: Your ViT But Faster, ICLR 2023)."""

from collections.abc import Sequence
from typing import ClassVar

from patchslim.hosts import HostInfo
from patchslim.methods.base import register
from patchslim.methods.knob import OneKnob, ReadoutOnly
from patchslim.steps import Step
from patchslim.steps.keep import Keep
from patchslim.steps.tome import ToMe as ToMeStep


@register("tome")
class ToMe(OneKnob):
    """Token Merging: r tokens merge in every block between attention and MLP, by bipartite matching on keys.

    The MAC ratio is met with r in the first blocks and r - 1 in the others; it needs no training.
    Take it for comparison: merge keeps more accuracy at the same MACs.
    """

    readout_only: ReadoutOnly = False

    knob: ClassVar[str] = "r"

    def knobs(self, info: HostInfo) -> list[list[int]]:
        """r of every block, from the fewest merges on."""
        return [
            [r] * blocks + [r - 1] * (info.depth - blocks)
            for r in range(1, info.patches // 2 + 1)
            for blocks in range(1, info.depth + 1)
        ]

    def published(self, info: HostInfo, removals: Sequence[int]) -> list[Step]:
        """r given for every block; no more than half of a block's patches merge."""
        left, steps = info.patches, list[Step]()
        for wanted in removals:
            r = min(wanted, left // 2)
            steps.append(ToMeStep(r=r) if r else Keep())
            left -= r
        return steps
