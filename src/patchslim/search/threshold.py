"""Thresholds for G's scores such that images take a given number of MACs on average."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.evidence.features import Features
from patchslim.hosts import Host
from patchslim.macs import steps_macs
from patchslim.plan import SlimPlan
from patchslim.slimmed import slim_blocks
from patchslim.steps import Step
from patchslim.steps.threshold import Threshold

CLOSE = 0.002  # of the budget
ROUNDS = 10


def with_thresholds(plan: SlimPlan, selector: str, hidden: int) -> SlimPlan:
    """A plan that predicts a fixed number per block as one with thresholds, which are still to be found.

    Where the head reads patches, all images end alike, so the last block chooses too.
    """
    least, depth, steps = max(1, plan.counts[-1]), plan.host.depth, list[Step]()
    fields: dict[str, Any] = {"selector": selector, "hidden": hidden}
    for layer, (step, count) in enumerate(zip(plan.steps, plan.counts, strict=True), start=1):
        if layer == depth and count:
            steps.append(Threshold(n=count, least=count, **fields))
        elif layer in plan.choosing:
            steps.append(Threshold(n=count, above=0.0, least=least, **fields))
        else:
            steps.append(step)
    return plan.with_(steps=steps, average_macs=0)


def calibrate(host: Host, features: Features, plan: SlimPlan, parts: Mapping[int, nn.Module], budget: int) -> SlimPlan:
    """Every block keeps the plan's counts on average, scaled alike in all blocks until the images' mean MACs meet the
    budget from below."""
    low, high, scale = 0.0, 2.0, 1.0  # at 0 every image keeps its best few only
    best: SlimPlan | None = None
    for _ in range(ROUNDS):
        trial = _at_scale(host, features, plan, parts, scale)
        macs = trial.average_macs
        assert macs is not None
        if macs <= budget:
            low, best = scale, trial
            if macs >= (1 - CLOSE) * budget:
                break
        else:
            high = scale
        scale = (low + high) / 2
    return best or _at_scale(host, features, plan, parts, low)


@torch.no_grad()
def _at_scale(host: Host, features: Features, plan: SlimPlan, parts: Mapping[int, nn.Module], scale: float) -> SlimPlan:
    """Thresholds, block by block from the first, by which `scale` times the plan's counts stay on average."""
    prefix = host.info.prefix_tokens
    blocks: list[Any] = slim_blocks(host, plan, parts)
    features.focus((0,))
    states: list[Any] = [blocks[0].enter(x) for (x,) in features.batches(0)]
    steps, kept = list[Step](), []
    for block, step, count in zip(blocks, plan.steps, plan.counts, strict=True):
        if isinstance(step, Threshold) and step.above is not None:
            scores = [block.step.scores(state, host.math.read(block, state.x).y) for state in states]
            block.step.above = _quantile(scores, scale * count)
            step = step.model_copy(update={"above": block.step.above})
        steps.append(step)
        states = [block.run(state) for state in states]
        kept.append([number for state in states for number in state.counts(prefix)])
    macs = [steps_macs(host.info, steps, counts) for counts in zip(*kept, strict=True)]
    return plan.with_(steps=steps, average_macs=round(sum(macs) / len(macs)))


def _quantile(scores: Sequence[Tensor], mean: float) -> float:
    """The score that `mean` patches per image exceed on average; (B, t) each, -inf where there is no patch."""
    images = sum(len(part) for part in scores)
    flat = torch.cat([part.flatten() for part in scores])
    flat = flat[flat.isfinite()].sort(descending=True).values
    rank = min(max(round(mean * images), 1), len(flat)) - 1
    after = min(rank + 1, len(flat) - 1)
    return float(flat[rank].double() + flat[after].double()) / 2 if after > rank else float(flat[rank]) - 1.0
