"""`evit`: token reorganisation (Liang et al., Not All Patches Are What You Need, ICLR 2022)."""

import math

from patchslim.hosts import Host, HostInfo
from patchslim.methods.base import register
from patchslim.methods.knob import OneKnob, ReadoutOnly, stages
from patchslim.steps import Step
from patchslim.steps.evit import EViT as EViTStep
from patchslim.steps.keep import Keep


@register("evit")
class EViT(OneKnob):
    """EViT: in three blocks the patches that the class token attends to most stay, and the others fuse into one token.

    One keep rate serves the three blocks that begin the later quarters of the network; it needs no training.
    Take it for comparison.
    """

    readout_only: ReadoutOnly = False

    def unsuitable(self, host: Host) -> str | None:
        """It needs a class token."""
        if host.info.reads_class:
            return None
        return f"EViT goes by the class token's attention, and {host.info.name} reads no class token"

    def published(self, info: HostInfo, rate: float) -> list[Step]:
        """⌈rate · incoming⌉ patches and the fused token stay in each block that reorganises."""
        left, steps = info.patches, list[Step]()
        for layer in range(1, info.depth + 1):
            kept = math.ceil(rate * left)
            fuses = layer in stages(info) and kept < left
            steps.append(EViTStep(n=kept + 1) if fuses else Keep())
            left = kept + 1 if fuses else left
        return steps
