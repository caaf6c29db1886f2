"""Plans for a clock: of the kind a search looks for, with patches that nobody chose. Time does not depend on which."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from patchslim.hosts import Host, HostInfo, open_host
from patchslim.plan import STAYS, SlimPlan, build_plan
from patchslim.search.config import SearchConfig
from patchslim.search.cost import predictor_of
from patchslim.slim import SlimModel
from patchslim.slim.assemble import assembled_
from patchslim.slim.predictor import make_predictor


def sketch(info: HostInfo, config: SearchConfig, counts: Sequence[int]) -> SlimPlan:
    """A plan that keeps so many patches in each block."""
    if config.select != "static":
        spec = predictor_of(info, config.select, config.predictor)
        fields: dict[str, Any] = {"select": config.select, "removed": config.removed, "predictor": spec}
        return build_plan(info, **fields, patches_per_block=list(counts))
    order = torch.randperm(info.patches, generator=torch.Generator().manual_seed(0)).tolist()
    kept = [sorted(order[:count]) for count in counts]
    into = _groups(order, counts) if config.removed == "merge" else None
    return build_plan(info, removed=config.removed, kept=kept, into=into)


def _groups(order: Sequence[int], counts: Sequence[int]) -> list[int]:
    """What each patch joins as it leaves: the ones that stay, in turn."""
    into, left = [STAYS] * len(order), len(order)
    for count in counts:
        for place in range(count, left) if count else ():
            into[order[place]] = order[place % count]
        left = count
    return into


def slimmed(host: Host, plan: SlimPlan, predictors: Mapping[int, nn.Module] | None = None) -> SlimModel:
    """A slim model for a clock; where patches are predicted and no G is given, by untrained ones."""
    if predictors is None and plan.predictor is not None:
        spec = plan.predictor
        predictors = {layer: make_predictor(host.info, spec.kind, spec.hidden).eval() for layer in plan.choosing}
    return assembled_(open_host(copy.deepcopy(host.model)), plan, predictors or {})
