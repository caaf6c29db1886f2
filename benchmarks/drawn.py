"""Plans drawn instead of searched for, where only speed counts: a curve says how many patches a block computes, chance
says which."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from patchslim.errors import BudgetError
from patchslim.hosts import Host, HostInfo
from patchslim.macs import host_macs, macs_of_counts, plan_macs
from patchslim.peers import Cell, Job, Method, Unreachable, make_methods
from patchslim.peers.power import Power, power_macs
from patchslim.plan import PredictorKind, Removed, SlimPlan, build_plan, make_plan
from patchslim.search.cost import predictor_of
from patchslim.slim import apply
from patchslim.slim.assemble import name_predictors
from patchslim.slim.predictor import make_predictor, predictor_fingerprint

CURVE = 1.2  # how patches leave: N − (N − n)·(l / L)^1.2 of them are left after block l
MOST, STEEP = 0.85, 0.1  # once this share leaves in all, they leave earlier: the exponent falls, down to that
PREDICTED: dict[str, tuple[PredictorKind, Removed]] = {"dps": ("pool", "drop"), "ps-predicted": ("context", "merge")}
Macs = Callable[[list[int]], int]


def counts_at(info: HostInfo, ratio: float, macs: Macs | None = None, reads: bool | None = None) -> list[int]:
    """Patches per block at a MAC ratio, along the curve. `macs` counts those of a method that is not a static plan;
    unless the last block's patches are `read`, it has none."""
    count = macs or (lambda counts: macs_of_counts(info, counts))
    keeps_last = info.reads_patches if reads is None else reads

    def counts(gone: float, bend: float) -> list[int]:
        last = info.depth - 1
        curve = [round(info.patches * (1 - gone * (block / last) ** bend)) for block in range(1, info.depth)]
        return [*curve, curve[-1] if keeps_last else 0]

    def fits(gone: float, bend: float) -> bool:
        return count(counts(gone, bend)) <= ratio * host_macs(info)

    if fits(MOST, CURVE):
        return counts(_bound(0.0, MOST, lambda gone: fits(gone, CURVE)), CURVE)
    if not fits(MOST, STEEP):
        raise BudgetError(f"The curve does not come down to {ratio:g} of {info.name}'s MACs.")
    return counts(MOST, _bound(CURVE, STEEP, lambda bend: fits(MOST, bend)))


def _bound(outside: float, inside: float, fits: Callable[[float], bool]) -> float:
    """The number nearest to `outside` that fits, as `inside` does."""
    for _ in range(30):
        middle = (outside + inside) / 2
        outside, inside = (outside, middle) if fits(middle) else (middle, inside)
    return inside


def _order(info: HostInfo) -> list[int]:
    return torch.randperm(info.patches, generator=torch.Generator().manual_seed(0)).tolist()


def static_plan(info: HostInfo, ratio: float) -> SlimPlan:
    """Random masks."""
    return make_plan(info, [_order(info)[:count] for count in counts_at(info, ratio)])


def matched_plan(info: HostInfo, ratio: float) -> SlimPlan:
    """Merges by similarity."""
    counts = counts_at(info, ratio, lambda own: macs_of_counts(info, own, "merge", select="matched"))
    return build_plan(info, select="matched", removed="merge", patches_per_block=counts)


def predicted_plan(
    host: Host, ratio: float, kind: PredictorKind, removed: Removed
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """Patches by a G that has learnt nothing, and its weights."""
    info, spec = host.info, predictor_of(host.info, "predicted", kind)
    assert spec is not None
    counts = counts_at(info, ratio, lambda own: macs_of_counts(info, own, removed, select="predicted", predictor=spec))
    fields: dict[str, Any] = {"select": "predicted", "removed": removed, "patches_per_block": counts}
    choosing = build_plan(info, **fields, predictor=spec).choosing
    weights = name_predictors(host, {layer: make_predictor(info, kind, spec.hidden) for layer in choosing})
    spec = spec.model_copy(update={"weights": predictor_fingerprint(weights)})
    return build_plan(info, **fields, predictor=spec), weights


class Drawn:
    """A method of `compare` whose schedule is drawn instead of searched or learnt."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """A model of at most that many MACs, as close as the curve goes."""
        host, info = job.host, job.host.info
        if self.name == "power":
            return Power().with_counts(job, counts_at(info, ratio, partial(power_macs, info), reads=True))
        weights: dict[str, Tensor] = {}
        if self.name in PREDICTED:
            plan, weights = predicted_plan(host, ratio, *PREDICTED[self.name])
        elif self.name == "ps-matched":
            plan = matched_plan(info, ratio)
        else:
            plan = static_plan(info, ratio)
        return Cell(apply(host.model, plan, weights), plan_macs(info, plan), {"patches_per_block": list(plan.counts)})


DRAWN = ("ps-static", "impact", "dps", "ps-predicted", "ps-matched", "power")


def quick_method(name: str) -> Method:
    """A method that needs no search: drawn, or a peer whose schedule does not depend on what it learns."""
    return Drawn(name) if name in DRAWN else make_methods([name])[0]
