"""Searches for plans that merge, or by which images choose: one draft of a plan per kind, all measured alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from patchslim.hosts import Host
from patchslim.macs import host_macs, plan_macs
from patchslim.plan import SlimPlan, build_plan
from patchslim.search.config import SearchConfig
from patchslim.search.cost import Budget, PlainBudget, distance_of, predictor_of
from patchslim.search.cover import Cover
from patchslim.search.distances import find_distances
from patchslim.search.features import Features
from patchslim.search.groups import likeness, static_groups
from patchslim.search.ledger import Ledger
from patchslim.search.measured import Draft, Measured, measure
from patchslim.search.predict import Trainer
from patchslim.search.schedule import Counts, Slots
from patchslim.search.speed import SpeedBudget
from patchslim.search.threshold import calibrate
from patchslim.search.topdown import Listener
from patchslim.slim.assemble import name_choosers
from patchslim.slim.chooser import DISTANCE, chooser_fingerprint
from patchslim.slim.predictor import Predictor

METHOD = "measured search"


def per_image_search(
    host: Host,
    features: Features,
    config: SearchConfig,
    ledger: Ledger,
    listen: Listener,
    budget: Budget,
    tolerance: float | None,
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """A plan, and what its patches are chosen by, under the host's names, where it is not the host's."""
    features.focus((0, host.info.depth))
    if config.select == "predicted":
        return _predicted(host, features, config, ledger, listen, budget, tolerance)
    if config.select == "matched":
        return _matched(host, features, config, ledger, listen, budget, tolerance)
    draft = _own_groups(host, features, config) if config.groups == "own" else _fixed_groups(host, features)
    measured = Measured(host, features, config, ledger, listen, draft, budget)
    plan, error = measured.search(tolerance)
    return signed(host, plan, config, features.count, tolerance, error, METHOD), {}


def _matched(
    host: Host,
    features: Features,
    config: SearchConfig,
    ledger: Ledger,
    listen: Listener,
    budget: Budget,
    tolerance: float | None,
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """Every image pairs its own patches, by distances of the blocks' own or by keys."""
    spec = distance_of(host.info, config.distance)
    distances = find_distances(host, features, ledger, config.seed, listen) if spec is not None else {}

    def draft(counts: Counts, drops: tuple[int, ...]) -> SlimPlan:
        fields: dict[str, Any] = {"select": "matched", "removed": config.removed, "distance": spec}
        return build_plan(host.info, **fields, patches_per_block=list(counts), drops=list(drops))

    plan, error = Measured(host, features, config, ledger, listen, draft, budget, distances).search(tolerance)
    plan = signed(host, plan, config, features.count, tolerance, error, METHOD)
    if spec is None:
        return plan, {}
    weights = name_choosers(host, {layer: distances[layer] for layer in plan.choosing}, DISTANCE)
    own = spec.model_copy(update={"weights": chooser_fingerprint(weights)})
    return plan.model_copy(update={"distance": own}), weights


def _own_groups(host: Host, features: Features, config: SearchConfig) -> Draft:
    """The same patches for every image, which joins the others to them as it sees fit."""
    cover = Cover(host, features, config.score, config.seed)

    def draft(counts: Counts, drops: tuple[int, ...]) -> SlimPlan:
        return build_plan(host.info, removed="merge", kept=cover.kept(counts), drops=list(drops))

    return draft


def _fixed_groups(host: Host, features: Features) -> Draft:
    """The same groups for every image."""
    found = likeness(host, features)

    def draft(counts: Counts, drops: tuple[int, ...]) -> SlimPlan:
        kept, into = static_groups(found, counts, drops)
        return build_plan(host.info, removed="merge", kept=kept, into=into)

    return draft


def _predicted(
    host: Host,
    features: Features,
    config: SearchConfig,
    ledger: Ledger,
    listen: Listener,
    budget: Budget,
    tolerance: float | None,
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """G learns on the whole network, the counts are searched with it, and it learns again on the network as slimmed."""
    info = host.info
    spec = predictor_of(info, config.select, config.predictor)

    def draft(counts: Counts, drops: tuple[int, ...]) -> SlimPlan:
        fields: dict[str, Any] = {"select": "predicted", "removed": config.removed, "predictor": spec}
        return build_plan(info, **fields, patches_per_block=list(counts), drops=list(drops))

    # How fast it is with thresholds is known only once they are there; until then, blocks' own times will do.
    first = PlainBudget(budget.cost, budget.ratio) if config.mode == "threshold" else budget
    trainer = Trainer(host, features, config, ledger, listen)
    slots = Slots(info)
    predictors = trainer.fit(draft(slots.everything, ()), range(1, slots.blocks + 1))
    plan, _ = Measured(host, features, config, ledger, listen, draft, first, predictors).search(tolerance)
    ends_alike = [info.depth] if config.mode == "threshold" and info.reads_patches else []
    predictors = trainer.fit(plan, sorted({*plan.choosing, *ends_alike}), begin=predictors)
    if config.mode == "threshold":
        plan = _with_thresholds(host, features, config, plan, predictors, budget)
    weights = name_choosers(host, predictors)
    own = plan.predictor.model_copy(update={"weights": chooser_fingerprint(weights)}) if plan.predictor else None
    plan = plan.model_copy(update={"predictor": own})
    error = measure(host, features, plan, predictors)
    return signed(host, plan, config, features.count, tolerance, error, METHOD), weights


def _with_thresholds(
    host: Host,
    features: Features,
    config: SearchConfig,
    plan: SlimPlan,
    predictors: Mapping[int, Predictor],
    budget: Budget,
) -> SlimPlan:
    """A top-k plan as one with thresholds, that takes as many MACs, or as long, as was asked for; else as many MACs as
    the plan."""

    def find(ratio: float) -> tuple[SlimPlan, None]:
        return calibrate(host, features, plan, predictors, int(ratio * host_macs(host.info))), None

    own = plan_macs(host.info, plan) / host_macs(host.info)
    if not isinstance(budget, SpeedBudget):
        return find(own if config.target_macs is None else config.target_macs)[0]
    images = next(pixels for pixels, _ in features.images.batches(config.speed_batch_size))
    return budget.meet(find, own, lambda found: budget.watch.whole(found, predictors, images))[0]


def signed(
    host: Host, plan: SlimPlan, config: SearchConfig, images: int, tolerance: float | None, error: float, method: str
) -> SlimPlan:
    """The plan with a word on how it came about."""
    macs = plan_macs(host.info, plan)
    provenance: dict[str, Any] = {
        "method": method,
        "settings": config.as_dict(),
        "tolerance": tolerance,
        "images": images,
        "errors": {"readout": error},
        "macs": macs,
        "macs_ratio": macs / host_macs(host.info),
    }
    return plan.model_copy(update={"provenance": provenance})
