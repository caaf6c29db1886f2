"""Closed-form multiply-accumulates of a host and of a plan for it: its blocks' sum. One multiply-add counts as one.

Matrix products only (linear layers, the patch embedding, both products of attention), as the field counts; equal to
torch's flop counter halved, with fused attention off. What choosing and merging patches costs is counted too.
"""

from collections.abc import Sequence

from torch import nn

from patchslim.hosts import HostInfo, inspect
from patchslim.plan import SlimPlan
from patchslim.steps import Step
from patchslim.steps.keep import Keep

MADE = "macs_per_image"  # the attribute of a model that a method made without a plan


def steps_macs(info: HostInfo, steps: Sequence[Step], kept: Sequence[int] | None = None) -> int:
    """MACs per image of a network of these steps: embedding, blocks, head.

    Where images differ, `kept` are the patches that each block computes of one of them.
    """
    total, entering = info.embed_macs, info.patches
    for layer, step in enumerate(steps, start=1):
        count = None if kept is None else kept[layer - 1]
        total += step.macs(info, layer, entering, count)
        entering = step.leaving(entering) if count is None else count
    return total + head_macs(info, entering)


def head_macs(info: HostInfo, patches: int) -> int:
    """Pooling and classifier when `patches` leave the last block."""
    read = patches + (info.prefix_tokens if info.head_reads_prefix else 0)
    return info.head_macs + read * info.head_macs_per_token


def host_macs(info: HostInfo) -> int:
    """MACs of the unslimmed host."""
    return steps_macs(info, [Keep()] * info.depth)


def plan_macs(info: HostInfo, plan: SlimPlan) -> int:
    """MACs per image under a plan; the average over the images of the search where images differ."""
    return steps_macs(info, plan.steps) if plan.average_macs is None else plan.average_macs


def count_macs(model: nn.Module, plan: SlimPlan | None = None) -> int:
    """MACs per image of a host, of a host under a plan, of a slim model, or of a model that a method made."""
    known: int | None = getattr(model, MADE, None)
    if known is not None and plan is None:
        return known
    plan = plan or getattr(model, "plan", None)
    info = inspect(model)
    if plan is None:
        return host_macs(info)
    plan.check_fits(info)
    return plan_macs(info, plan)
