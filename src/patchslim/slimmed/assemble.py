"""From a plan to the slim model: one slim block for each of the host's."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PlanError, UnsupportedModel
from patchslim.hosts import Host, HostInfo, copied, open_host, open_slim, unwrapped
from patchslim.hosts.weights import load_part_, tensors_fingerprint
from patchslim.macs import MADE
from patchslim.plan import SlimPlan, make_plan
from patchslim.slimmed.block import Entrance, Places, SlimBlock
from patchslim.slimmed.refuse import check_pool
from patchslim.steps.keep import Keep

Parts = Mapping[int, nn.Module]  # by block number: the part that its step learnt


@torch.inference_mode(False)  # what is made in that mode could never learn
def apply(model: nn.Module, plan: SlimPlan, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A new model of the host's own class that computes what the plan keeps; the given model stays as it was.

    `weights` replace the host's, under the host's names, and are those of the steps (`blocks.3.step.…`). The result has
    one attribute more, `plan`. Its state dict loads back into the host, less what the steps own.
    """
    if is_slim(model):
        raise UnsupportedModel("This model is slim already; apply the plan to the host it was made from.")
    host = open_host(copied(unwrapped(model)))
    plan.check_fits(host.info)
    slim: Any = assembled_(host, plan)
    _check_own(slim, plan, weights or {})
    if weights:
        load_part_(slim, weights)
    if plan.weights and weights:  # in the model's own precision they are other numbers
        own = slim.state_dict()
        frozen = {name: weights[name].to(own[name].dtype) for name in frozen_keys(slim)}
        slim.plan = plan.with_(weights=fingerprint(frozen))
    return slim  # type: ignore[no-any-return]


def _check_own(slim: nn.Module, plan: SlimPlan, given: Mapping[str, Tensor]) -> None:
    """Raise PlanError unless the steps get the weights that came with the plan."""
    frozen, names = frozen_keys(slim), slim.state_dict()
    for name in frozen:
        if name not in given:
            raise PlanError(f"This plan's steps have weights of their own, and {name} is not given; give all of them.")
    for name in given:
        if name not in names and ".step." in name:
            raise PlanError(f"These weights hold {name}, and no step of this plan owns that.")
    if plan.weights and fingerprint({name: given[name] for name in frozen}) != plan.weights:
        raise PlanError(
            "The weights of the steps belong to another model or plan; give those that came with this plan."
        )


def assembled_(host: Host, plan: SlimPlan, parts: Parts | None = None) -> nn.Module:
    """The host's own model made slim; steps without a part of their own begin untrained."""
    slim: Any = host.slimmed_(slim_blocks(host, plan, parts))
    slim.plan = plan
    if not plan.leaving and check_pool not in slim._forward_pre_hooks.values():
        slim.register_forward_pre_hook(check_pool)
    return slim  # type: ignore[no-any-return]


def slim_blocks(host: Host, plan: SlimPlan, parts: Parts | None = None) -> list[SlimBlock]:
    """Slim blocks that share the host's parameters, and the parts of steps where they are given."""
    info = host.info
    first = next(host.model.parameters())
    blocks = []
    for layer, (block, step, entering) in enumerate(zip(host.blocks, plan.steps, plan.entering, strict=True), start=1):
        runner = _runner(step, info, layer, entering, (parts or {}).get(layer))
        blocks.append(SlimBlock(block, host.math, runner.to(first.device, first.dtype).train(block.training)))
    for block, count in zip(blocks, plan.counts, strict=True):
        block.fewer = count < info.patches
    order = entrance_order(plan)
    tracks = any(step.tracks for step in plan.steps)
    sorts = None if order is None else Places(order)
    entrance = Entrance(info.tokens, info.prefix_tokens, sorts, not plan.rectangular, tracks, not plan.per_image)
    blocks[0].entrance = entrance.to(first.device).train(blocks[0].training)
    blocks[-1].last = True
    if order is not None and plan.leaving > plan.counts[-1]:  # patches that are carried along
        own = order[: info.prefix_tokens + plan.leaving]
        blocks[-1].back = Places(sorted(range(len(own)), key=own.__getitem__)).to(first.device)
    return blocks


def _runner(step: Any, info: Any, layer: int, entering: int, part: nn.Module | None) -> nn.Module:
    """What runs a step; drawing numbers for what is untrained leaves everybody else's random numbers alone."""
    if part is None:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            return step.module(info, layer, entering)  # type: ignore[no-any-return]
    with torch.device("meta"):
        runner = step.module(info, layer, entering)
    name: str | None = getattr(runner, "part", None)  # a step that removes nothing has learnt nothing
    if name is not None:
        setattr(runner, name, part)
    return runner  # type: ignore[no-any-return]


def entrance_order(plan: SlimPlan) -> list[int] | None:
    """The order in which a static plan's p + N tokens enter block 1; None where it is the host's own."""
    if plan.order is None:
        return None
    prefix = plan.host.prefix_tokens
    places = [*range(prefix), *(prefix + patch for patch in plan.order)]
    return None if places == sorted(places) else places


def is_slim(model: nn.Module) -> bool:
    """Whether a plan was applied to make this model."""
    return plan_of(model) is not None


def plan_of(model: nn.Module) -> SlimPlan | None:
    """A slim model's plan; None for any other model."""
    plan: SlimPlan | None = getattr(unwrapped(model), "plan", None)
    return plan if isinstance(plan, SlimPlan) else None


def rectangular(model: nn.Module) -> bool:
    """Whether all images keep equally many tokens, so that a batch stays one tensor."""
    plan = plan_of(model)
    return plan is None or plan.rectangular


def made_from(model: nn.Module) -> HostInfo | None:
    """The host that a method made a model from, with a plan or without; None for any other model."""
    made = is_slim(model) or hasattr(model, MADE)
    return open_slim(model).info if made else None


def full_plan(model: nn.Module) -> SlimPlan:
    """The plan that keeps every patch in every block: the host itself."""
    info = open_host(model).info
    return make_plan(info, [Keep()] * info.depth)


def own_keys(model: nn.Module) -> set[str]:
    """Names in the state dict of what the steps own; everything else is the host's."""
    return {f"{name}.step.{key}" for name, block in _named_blocks(model) for key in block.step.state_dict()}


def frozen_keys(model: nn.Module) -> list[str]:
    """Those that belong to the plan and never learn: distances, token selectors, predictors."""
    return sorted(f"{name}.step.{key}" for name, block in _named_blocks(model) for key in block.frozen)


def _named_blocks(model: nn.Module) -> list[tuple[str, SlimBlock]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, SlimBlock)]


def own_weights(host: Host, plan: SlimPlan, parts: Parts) -> dict[str, Tensor]:
    """Weights of the steps' parts under the host's names: `blocks.3.step.distance.weight`."""
    names = {id(module): name for name, module in host.model.named_modules()}
    return {
        f"{names[id(block)]}.step.{key}": value.detach().cpu().clone()
        for block, slim in zip(host.blocks, slim_blocks(host, plan, parts), strict=True)
        for key, value in slim.step.state_dict().items()
    }


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """The same for the same weights, however they are ordered; empty for none."""
    return tensors_fingerprint(dict(sorted(weights.items()))) if weights else ""
