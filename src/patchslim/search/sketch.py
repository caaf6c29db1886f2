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
from patchslim.search.cost import distance_of, predictor_of
from patchslim.slim import SlimModel
from patchslim.slim.assemble import assembled_, fresh_chooser


def sketch(info: HostInfo, config: SearchConfig, counts: Sequence[int]) -> SlimPlan:
    """A plan that keeps so many patches in each block."""
    if config.select != "static":
        fields: dict[str, Any] = {"select": config.select, "removed": config.removed}
        fields["predictor"] = predictor_of(info, config.select, config.predictor)
        fields["distance"] = distance_of(info, config.distance)
        return build_plan(info, **fields, patches_per_block=list(counts))
    order = torch.randperm(info.patches, generator=torch.Generator().manual_seed(0)).tolist()
    kept = [sorted(order[:count]) for count in counts]
    into = _groups(order, counts) if config.groups == "fixed" else None
    return build_plan(info, removed=config.removed, kept=kept, into=into)


def _groups(order: Sequence[int], counts: Sequence[int]) -> list[int]:
    """What each patch joins as it leaves: the ones that stay, in turn."""
    into, left = [STAYS] * len(order), len(order)
    for count in counts:
        for place in range(count, left) if count else ():
            into[order[place]] = order[place % count]
        left = count
    return into


def slimmed(host: Host, plan: SlimPlan, choosers: Mapping[int, nn.Module] | None = None) -> SlimModel:
    """A slim model for a clock; where it has to choose and is not told by what, by untrained G or distances."""
    if choosers is None and (plan.predictor or plan.distance):
        choosers = {layer: fresh_chooser(host, plan, layer).eval() for layer in plan.choosing}
    return assembled_(open_host(copy.deepcopy(host.model)), plan, choosers or {})
