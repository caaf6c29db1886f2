"""Thresholds for G's scores such that images take a given number of MACs on average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.hosts import Host
from patchslim.macs import macs_under
from patchslim.plan import SlimPlan
from patchslim.search.features import Features
from patchslim.slim.assemble import slim_blocks
from patchslim.slim.packed import PackedBlock

CLOSE = 0.002  # of the budget
ROUNDS = 10


def calibrate(
    host: Host, features: Features, plan: SlimPlan, predictors: Mapping[int, nn.Module], budget: int
) -> SlimPlan:
    """A top-k plan as one with thresholds: every block keeps the plan's counts on average, scaled alike in all blocks
    until the images' mean MACs meet the budget from below."""
    low, high, scale = 0.0, 2.0, 1.0  # at 0 every image keeps its best few only
    best: SlimPlan | None = None
    for _ in range(ROUNDS):
        trial = _at_scale(host, features, plan, predictors, scale)
        macs = trial.predictor.average_macs if trial.predictor else None
        assert macs is not None
        if macs <= budget:
            low, best = scale, trial
            if macs >= (1 - CLOSE) * budget:
                break
        else:
            high = scale
        scale = (low + high) / 2
    return best or _at_scale(host, features, plan, predictors, low)


@torch.no_grad()
def _at_scale(
    host: Host, features: Features, plan: SlimPlan, predictors: Mapping[int, nn.Module], scale: float
) -> SlimPlan:
    """Thresholds, block by block from the first, by which `scale` times the plan's counts stay on average."""
    info = host.info
    trial = _with(plan, [0.0] * info.depth, 0)
    blocks: list[Any] = slim_blocks(host, trial, predictors)
    features.focus((0,))
    states: list[Any] = [x for (x,) in features.batches(0)]
    thresholds, kept = [], []
    for layer, (block, count) in enumerate(zip(blocks, plan.counts, strict=True), start=1):
        assert isinstance(block, PackedBlock)
        if layer == info.depth:  # all images end alike
            thresholds.append(0.0)
            kept.append([count] * features.count)
            break
        if layer in trial.choosing:
            block.threshold = _quantile([block.scores(state) for state in states], scale * count)
        thresholds.append(block.threshold)
        states = [block(state) for state in states]
        kept.append([length - info.prefix_tokens for state in states for length in state.lengths])
    macs = [macs_under(info, trial, counts) for counts in zip(*kept, strict=True)]
    return _with(plan, thresholds, round(sum(macs) / len(macs)))


def _quantile(scores: Sequence[Tensor], mean: float) -> float:
    """The score that `mean` patches per image exceed on average; (B, t) each, -inf where there is no patch."""
    images = sum(len(part) for part in scores)
    flat = torch.cat([part.flatten() for part in scores])
    flat = flat[flat.isfinite()].sort(descending=True).values
    rank = min(max(round(mean * images), 1), len(flat)) - 1
    after = min(rank + 1, len(flat) - 1)
    return float(flat[rank].double() + flat[after].double()) / 2 if after > rank else float(flat[rank]) - 1.0


def _with(plan: SlimPlan, thresholds: list[float], macs: int) -> SlimPlan:
    assert plan.predictor is not None
    changed = {"mode": "threshold", "thresholds": thresholds, "average_macs": macs}
    return plan.model_copy(update={"predictor": plan.predictor.model_copy(update=changed)})
