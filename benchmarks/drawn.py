"""Plans drawn instead of searched for, where only speed counts: how many patches a block computes follows the shape of
a plan that was searched for, chance says which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from patchslim.errors import BudgetError
from patchslim.hosts import Host, HostInfo
from patchslim.macs import host_macs, macs_of_counts, plan_macs
from patchslim.peers import Cell, Job, Method, Unreachable, make_methods
from patchslim.peers.power import Power, power_macs
from patchslim.plan import DistanceSpec, PredictorKind, Removed, SlimPlan, build_plan, make_plan
from patchslim.search.cost import distance_of, predictor_of
from patchslim.slim import apply
from patchslim.slim.assemble import name_choosers
from patchslim.slim.chooser import DISTANCE, chooser_fingerprint, make_distance
from patchslim.slim.predictor import make_predictor

# How patches leave: the DeiT-Ti plans at 0.55 of the MACs in docs/results.md, of 196. Other ratios stretch them.
STATIC = (141, 141, 140, 127, 116, 112, 110, 106, 105, 105, 95)
MATCHED = (196, 183, 183, 162, 142, 109, 73, 61, 53, 46, 46)
THREE_STEPS = (196, 196, 196, 127, 127, 127, 82, 82, 82, 53, 53)  # two thirds stay, three times
OF = 196
PREDICTED: dict[str, tuple[PredictorKind, Removed]] = {"dps": ("pool", "drop"), "ps-predicted": ("context", "merge")}
Macs = Callable[[list[int]], int]


def counts_at(
    info: HostInfo, ratio: float, macs: Macs | None = None, reads: bool | None = None, shape: Sequence[int] = STATIC
) -> list[int]:
    """Patches per block at a MAC ratio, in the shape of a plan, of whose patches more or fewer leave. `macs` counts
    those of a method that is not a static plan; unless the last block's patches are `read`, it has none."""
    count = macs or (lambda counts: macs_of_counts(info, counts))
    keeps_last = info.reads_patches if reads is None else reads
    shares = [1 - shape[round(block * (len(shape) - 1) / (info.depth - 2))] / OF for block in range(info.depth - 1)]

    def counts(stretch: float) -> list[int]:
        left = [info.patches]
        for share in shares:  # no block loses more than half: matching in pairs can't
            left.append(max(round(info.patches * (1 - stretch * share)), (left[-1] + 1) // 2))
        return [*left[1:], left[-1] if keeps_last else 0]

    most = 1 / min(share for share in shares if share)  # the last block that loses patches is down to one
    if count(counts(most)) > ratio * host_macs(info):
        raise BudgetError(f"No plan of this shape comes down to {ratio:g} of {info.name}'s MACs.")
    outside, inside = 0.0, most
    for _ in range(40):
        middle = (outside + inside) / 2
        fits = count(counts(middle)) <= ratio * host_macs(info)
        outside, inside = (outside, middle) if fits else (middle, inside)
    return counts(inside)


def _order(info: HostInfo) -> list[int]:
    return torch.randperm(info.patches, generator=torch.Generator().manual_seed(0)).tolist()


def static_plan(info: HostInfo, ratio: float) -> SlimPlan:
    """Random masks."""
    return make_plan(info, [_order(info)[:count] for count in counts_at(info, ratio)])


def matched_plan(
    info: HostInfo, ratio: float, shape: Sequence[int] = MATCHED, distance: DistanceSpec | None = None
) -> SlimPlan:
    """Merges what is near, by keys or by distances."""
    choice: dict[str, Any] = {"select": "matched", "distance": distance}
    counts = counts_at(info, ratio, lambda own: macs_of_counts(info, own, "merge", **choice), shape=shape)
    return build_plan(info, **choice, removed="merge", patches_per_block=counts)


def matched_by_distance(host: Host, ratio: float, shape: Sequence[int] = MATCHED) -> tuple[SlimPlan, dict[str, Tensor]]:
    """Merges by distances that have learnt nothing, as many channels as `slim` takes, and their weights."""
    info, spec = host.info, distance_of(host.info, "effect")
    assert spec is not None
    plan = matched_plan(info, ratio, shape, spec)
    made = {layer: make_distance(info.blocks[layer - 1].width, spec.channels) for layer in plan.choosing}
    weights = name_choosers(host, made, DISTANCE)
    own = spec.model_copy(update={"weights": chooser_fingerprint(weights)})
    return plan.model_copy(update={"distance": own}), weights


def predicted_plan(
    host: Host, ratio: float, kind: PredictorKind, removed: Removed
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """Patches by a G that has learnt nothing, and its weights."""
    info, spec = host.info, predictor_of(host.info, "predicted", kind)
    assert spec is not None
    shape = MATCHED if removed == "merge" else STATIC

    def macs(own: list[int]) -> int:
        return macs_of_counts(info, own, removed, select="predicted", predictor=spec)

    counts = counts_at(info, ratio, macs, shape=shape)
    fields: dict[str, Any] = {"select": "predicted", "removed": removed, "patches_per_block": counts}
    choosing = build_plan(info, **fields, predictor=spec).choosing
    weights = name_choosers(host, {layer: make_predictor(info, kind, spec.hidden) for layer in choosing})
    spec = spec.model_copy(update={"weights": chooser_fingerprint(weights)})
    return build_plan(info, **fields, predictor=spec), weights


class Drawn:
    """A method of `compare` whose schedule is drawn instead of searched or learnt."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """A model of at most that many MACs, as close as whole patches go."""
        host, info = job.host, job.host.info
        if self.name == "power":
            return Power().with_counts(job, counts_at(info, ratio, partial(power_macs, info), reads=True))
        weights: dict[str, Tensor] = {}
        if self.name in PREDICTED:
            plan, weights = predicted_plan(host, ratio, *PREDICTED[self.name])
        elif self.name == "ps-matched":
            plan, weights = matched_by_distance(host, ratio)
        else:
            plan = static_plan(info, ratio)
        return Cell(apply(host.model, plan, weights), plan_macs(info, plan), {"patches_per_block": list(plan.counts)})


DRAWN = ("ps-static", "impact", "dps", "ps-predicted", "ps-matched", "power")


def quick_method(name: str) -> Method:
    """A method that needs no search: drawn, or a peer whose schedule does not depend on what it learns."""
    return Drawn(name) if name in DRAWN else make_methods([name])[0]
