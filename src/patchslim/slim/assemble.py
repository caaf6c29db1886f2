"""From a plan to the slim model: one slim block for each of the host's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PlanError, UnsupportedModel
from patchslim.hosts import Host, open_host
from patchslim.hosts.weights import check_weights, load_part_
from patchslim.plan import SlimPlan, make_plan
from patchslim.slim.blocks import BlockOf, ReducingBlock, SlimBlock
from patchslim.slim.chooser import (
    DISTANCE,
    PREDICTOR,
    chooser_fingerprint,
    chooser_weights,
    is_chooser_key,
    make_distance,
)
from patchslim.slim.model import SlimModel, slim_class
from patchslim.slim.packed import PackedBlock
from patchslim.slim.predictor import make_predictor, needs_places
from patchslim.slim.reduce import Grouped, Matched, Nearest, Predicted, Reduce


def apply(model: nn.Module, plan: SlimPlan, tuned: Mapping[str, Tensor] | None = None) -> SlimModel:
    """A new model of the host's own class that computes what the plan keeps; the given model stays as it was.

    `tuned` are weights under the host's names that replace the host's, and those of G where patches are predicted, or
    of distances where they are matched by some; without the latter they are matched by their keys. The result has the
    host's parameters under the host's names, so its state dict loads back into the host (less G or distances);
    `.plan` and `.host_info` tell what it is, `.sources(images)` where its tokens come from.
    """
    if is_slim(model):
        raise UnsupportedModel("This model is slim already; apply the plan to the host it was made from.")
    host = open_host(copy.deepcopy(model))
    plan.check_fits(host.info)
    plan = as_weights_allow(plan, tuned or {})
    choosers = load_choosers(host, plan, tuned or {})
    own = {name: tensor for name, tensor in (tuned or {}).items() if not is_chooser_key(name)}
    if own:
        load_part_(host.model, own)
    return assembled_(host, plan, choosers, _spec_or_none(host))


def as_weights_allow(plan: SlimPlan, weights: Mapping[str, Tensor]) -> SlimPlan:
    """The plan itself, or, where distances belong to it and are not given, the same by keys."""
    if plan.distance is None or not plan.choosing or chooser_weights(weights):
        return plan
    warnings.warn("Distances came with this plan and are not given, so patches are matched by keys.", stacklevel=3)
    return plan.by_keys()


def assembled_(
    host: Host, plan: SlimPlan, choosers: Mapping[int, nn.Module], spec: Mapping[str, Any] | None = None
) -> SlimModel:
    """The host's own model made slim, with a G or a distance for every block of a plan that has some; it can be saved
    with a spec."""
    info = host.info
    slim: Any = host.slimmed_(slim_blocks(host, plan, choosers))
    slim.__class__ = slim_class(type(slim))
    slim.plan, slim.host_info, slim.host_spec = plan, info, spec
    return slim  # type: ignore[no-any-return]


def is_slim(model: nn.Module) -> bool:
    """Whether `apply` made this model."""
    return isinstance(model, SlimModel)


def full_plan(model: nn.Module) -> SlimPlan:
    """The plan that keeps every patch in every block: the host itself."""
    info = open_host(model).info
    return make_plan(info, [list(range(info.patches))] * info.depth, provenance={"method": "everything kept"})


def slim_blocks(host: Host, plan: SlimPlan, choosers: Mapping[int, nn.Module]) -> list[BlockOf]:
    """Slim blocks that share the host's parameters; G or distances by block number where a plan has some."""
    choosers = {layer: choosers[layer] for layer in plan.choosing if layer in choosers}
    if plan.mode == "threshold":
        blocks = _packed_blocks(host, plan, choosers)
    elif plan.per_image or plan.removed == "merge":
        blocks = _reducing_blocks(host, plan, choosers)
    else:
        blocks = _sliced_blocks(host, plan)
    blocks[0].tokens = host.info.tokens
    device = next(host.model.parameters()).device
    return [block.to(device) for block in blocks]


def _sliced_blocks(host: Host, plan: SlimPlan) -> list[BlockOf]:
    carry, prefix = plan.removed == "carry", host.info.prefix_tokens
    pairs = zip(host.blocks, plan.counts, strict=True)
    blocks = [SlimBlock(block, host.math, prefix + count, carry) for block, count in pairs]
    blocks[0].order = entrance(plan, prefix)
    if carry and blocks[0].order is not None:
        blocks[-1].restore = blocks[0].order.argsort()
    return list(blocks)


def entrance(plan: SlimPlan, prefix: int) -> Tensor | None:
    """The order in which a static plan's tokens enter block 1; None where it is the host's own."""
    places = [*range(prefix), *(prefix + patch for patch in plan.order)]
    return None if places == sorted(places) else torch.tensor(places)


def _reducing_blocks(host: Host, plan: SlimPlan, choosers: Mapping[int, nn.Module]) -> list[BlockOf]:
    info, depth = host.info, host.info.depth
    none: Mapping[int, nn.Module] = {}
    predictors, distances = (choosers, none) if plan.distance is None else (none, choosers)
    reducers = _grouped(plan, info.prefix_tokens) if plan.into is not None else _choosers(host, plan)
    blocks = [
        ReducingBlock(
            block,
            host.math,
            info.prefix_tokens,
            reducer,
            predictors.get(layer),
            distances.get(layer),
            places=needs_places(plan.predictor),
            last=layer == depth,
        )
        for layer, (block, reducer) in enumerate(zip(host.blocks, reducers, strict=True), start=1)
    ]
    if not plan.per_image:
        blocks[0].order = entrance(plan, info.prefix_tokens)
    return list(blocks)


def _choosers(host: Host, plan: SlimPlan) -> list[Reduce | None]:
    """What each block of a plan that varies chooses or groups by; None where everything stays."""
    info, above = host.info, host.info.patches
    reducers: list[Reduce | None] = []
    for layer, count in enumerate(plan.counts, start=1):
        prefix, ways = info.prefix_tokens, (plan.merges(layer), info.reads_class)
        if count == above:
            reducers.append(None)
        elif count == 0:
            reducers.append(Reduce(0, prefix))
        elif plan.select == "static":
            reducers.append(Nearest(count, prefix, *ways))
        elif plan.select == "predicted":
            reducers.append(Predicted(count, prefix, *ways))
        else:
            reducers.append(Matched(count, prefix, *ways))
        above = count
    return reducers


def _grouped(plan: SlimPlan, prefix: int) -> list[Reduce | None]:
    """Static groups on sorted tokens."""
    order, target = plan.order, plan.into or []
    place = {patch: rank for rank, patch in enumerate(order)}
    size = torch.ones(len(order))
    reducers: list[Reduce | None] = []
    for count in plan.counts:
        gone = order[count : len(size)]
        into = torch.tensor([place[target[patch]] if target[patch] >= 0 else -1 for patch in gone], dtype=torch.long)
        if not gone:
            reducers.append(None)
        elif (into < 0).all():
            reducers.append(Reduce(count, prefix))
            size = size[:count]
        else:
            reducers.append(grouped := Grouped(count, prefix, size, into))
            size = grouped.size[0, prefix:]
    return reducers


def _packed_blocks(host: Host, plan: SlimPlan, predictors: Mapping[int, nn.Module]) -> list[BlockOf]:
    info, depth = host.info, host.info.depth
    assert plan.predictor is not None
    assert plan.predictor.thresholds is not None
    least = max(1, plan.counts[-1])
    return [
        PackedBlock(
            block,
            host.math,
            info.prefix_tokens,
            info.patches,
            predictors.get(layer),
            threshold=threshold,
            least=plan.counts[-1] if layer == depth else least,
            last=layer == depth,
        )
        for layer, (block, threshold) in enumerate(zip(host.blocks, plan.predictor.thresholds, strict=True), start=1)
    ]


def load_choosers(host: Host, plan: SlimPlan, weights: Mapping[str, Tensor]) -> dict[int, nn.Module]:
    """The G or the distance of every block that chooses, from weights under the host's names; PlanError when they are
    others'."""
    own, spec = chooser_weights(weights), plan.predictor or plan.distance
    if spec is None:
        if own:
            raise PlanError(f"These weights hold a predictor or distances, and this {plan.select} plan uses none.")
        return {}
    word = DISTANCE if plan.predictor is None else PREDICTOR
    if not own and plan.choosing:
        raise PlanError("This plan predicts patches; give the weights of the predictor that was trained with it.")
    if chooser_fingerprint(own) != spec.weights:
        raise PlanError(f"This {word} was trained for another model or plan; give the one that came with this plan.")
    names = {id(module): name for name, module in host.model.named_modules()}
    choosers = {}
    for layer in plan.choosing:
        start = f"{names[id(host.blocks[layer - 1])]}.{word}."
        chooser = fresh_chooser(host, plan, layer)
        part = {name.removeprefix(start): tensor for name, tensor in own.items() if name.startswith(start)}
        check_weights(chooser, part, f"The {word}")
        chooser.load_state_dict(part)
        choosers[layer] = chooser.eval()
    return choosers


def fresh_chooser(host: Host, plan: SlimPlan, layer: int) -> nn.Module:
    """What block `layer` (from 1) of a plan that has some chooses by, as yet untrained."""
    if plan.predictor is not None:
        return make_predictor(host.info, plan.predictor.kind, plan.predictor.hidden)
    assert plan.distance is not None
    return make_distance(host.info.blocks[layer - 1].width, plan.distance.channels)


def name_choosers(host: Host, choosers: Mapping[int, nn.Module], word: str = PREDICTOR) -> dict[str, Tensor]:
    """Weights of G, or of distances, under the host's names: `blocks.3.predictor.…`."""
    names = {id(module): name for name, module in host.model.named_modules()}
    return {
        f"{names[id(host.blocks[layer - 1])]}.{word}.{key}": value.detach().cpu().clone()
        for layer, chooser in sorted(choosers.items())
        for key, value in chooser.state_dict().items()
    }


def _spec_or_none(host: Host) -> Mapping[str, Any] | None:
    """What `save` needs; a model that can't be described can still be slimmed, only not saved as a run."""
    try:
        return host.spec()
    except UnsupportedModel:
        return None
