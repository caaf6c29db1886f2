"""A whole search: from a model, images and settings to a plan and the weights of the blocks it tuned."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from patchslim.data import ImageSource, as_source
from patchslim.hosts import Host, open_host
from patchslim.macs import host_macs, macs_of_counts
from patchslim.plan import SPEED, SlimPlan, make_plan
from patchslim.search.budget import bisect_tolerance, check_reachable, spend_rest
from patchslim.search.config import SearchConfig
from patchslim.search.cost import Budget, PlainBudget
from patchslim.search.features import Features
from patchslim.search.greedy import Greedy
from patchslim.search.ledger import Ledger
from patchslim.search.network import Partial
from patchslim.search.per_image import per_image_search, signed
from patchslim.search.speed import SpeedBudget
from patchslim.search.stopwatch import Stopwatch
from patchslim.search.topdown import Listener, TopDown

DEFAULT_TOLERANCE = 0.01  # the paper's


def search(
    model: nn.Module,
    images: ImageSource | Tensor,
    config: SearchConfig | None = None,
    *,
    checkpoint: Path | None = None,
    listen: Listener = lambda event: None,
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """Find a plan for the model on unlabelled images. The model is left as it was.

    Static patches leave by the effect of their removal, or by Algorithm 1 for the other scores; every other kind is
    found by measuring. Returns the plan and weights under the host's own names: of the blocks that were tuned, and
    of G where patches are predicted, or of distances where they are matched by some. Given a `checkpoint` folder,
    everything found out is kept there, and a search that finds one goes on from it.
    """
    config = config or SearchConfig()
    return Session(model, images, config, checkpoint=checkpoint, listen=listen).find(config)


def sweep(
    model: nn.Module,
    images: ImageSource | Tensor,
    config: SearchConfig,
    ratios: Sequence[float],
    *,
    checkpoint: Path | None = None,
    listen: Listener = lambda event: None,
) -> Iterator[tuple[float, SlimPlan, dict[str, Tensor]]]:
    """Plans for several MAC ratios, the largest first: features are computed once, and what one search finds out
    serves the next."""
    session = Session(model, images, config, checkpoint=checkpoint, listen=listen)
    for ratio in sorted(ratios, reverse=True):
        yield ratio, *session.find(replace(config, tolerance=None, target_macs=ratio))


class Session:
    """What searches on one host and its images share: features, and everything found out so far."""

    def __init__(
        self,
        model: nn.Module,
        images: ImageSource | Tensor,
        config: SearchConfig,
        *,
        checkpoint: Path | None = None,
        listen: Listener = lambda event: None,
    ) -> None:
        source = as_source(images)
        self.host = open_host(copy.deepcopy(model).eval().requires_grad_(False))
        if config.target_macs is not None:
            check_reachable(self.host.info, config, config.target_macs)
        self.features = Features(self.host, source, config.batch_size, config.cache_gib * 2**30)
        self.ledger, self.listen = Ledger(checkpoint), listen

    def find(self, config: SearchConfig) -> tuple[SlimPlan, dict[str, Tensor]]:
        """One search. Settings may differ from the session's in what they ask for, and in nothing else."""
        host, features, parts = self.host, self.features, (self.ledger, self.listen)
        if config.target_macs is not None:
            check_reachable(host.info, config, config.target_macs)
        budget = self._budget(config)
        if config.select == "static" and config.score == "effect":
            plan, error = Greedy(host, features, config, *parts, budget).search(_tolerance(config))
            plan = signed(host, plan, config, features.count, _tolerance(config), error, "greedy reconstruction")
            weights: dict[str, Tensor] = {}
        elif not config.top_down:
            plan, weights = per_image_search(host, features, config, *parts, budget, _tolerance(config))
        else:
            top_down = TopDown(host, features, config, *parts, budget.cost)
            partial, tolerance = _find(top_down, config, budget)
            plan, weights = _plan(host, config, partial, tolerance, features.count), _tuned_weights(host, partial)
        if isinstance(budget, SpeedBudget):
            plan = plan.model_copy(update={"provenance": plan.provenance | {SPEED: budget.report}})
        return plan, weights

    def _budget(self, config: SearchConfig) -> Budget:
        """What limits the plan: MACs, time, or nothing but its error."""
        if config.target_speedup is None:
            return PlainBudget.under(self.host.info, config)
        return SpeedBudget(Stopwatch(self.host, config, self.ledger, self.listen), config.target_speedup)


def _tolerance(config: SearchConfig) -> float | None:
    """ε, the paper's where nothing is asked for; None where MACs or time are."""
    if config.target_macs is not None or config.target_speedup is not None:
        return None
    return DEFAULT_TOLERANCE if config.tolerance is None else config.tolerance


def _find(top_down: TopDown, config: SearchConfig, budget: Budget) -> tuple[Partial, float]:
    """The decided blocks, and the tolerance that decided how many patches they keep."""
    tune, info, allowed = bool(config.tune_epochs), top_down.host.info, _tolerance(config)
    if allowed is not None:
        return top_down.search(allowed, tune), allowed

    def find(ratio: float) -> tuple[SlimPlan, tuple[Partial, float]]:
        tolerance, partial = bisect_tolerance(top_down, ratio)
        counts = spend_rest(info, budget.cost, partial.counts, partial.errors, ratio)
        partial = replace(partial, counts=counts)
        return make_plan(info, _kept(partial), config.removed), (partial, tolerance)

    # Bisecting with tuned blocks would tune every candidate of every bisection step. Counts come from untuned
    # errors instead, and tuning runs once, at those counts: docs/decisions.md has the comparison.
    _, (partial, tolerance) = budget.meet(find)
    return top_down.at_counts(partial.counts, tune=True) if tune else partial, tolerance


def _kept(partial: Partial) -> list[list[int]]:
    """The patches of every block, once all are decided."""
    return [partial.order[: partial.counts[layer]] for layer in sorted(partial.counts)]


def _plan(host: Host, config: SearchConfig, partial: Partial, tolerance: float, images: int) -> SlimPlan:
    kept = _kept(partial)
    macs = macs_of_counts(host.info, [len(block) for block in kept], config.removed)
    provenance: dict[str, Any] = {
        "method": "top-down search",
        "settings": config.as_dict(),
        "tolerance": tolerance,
        "images": images,
        "errors": {str(layer): partial.errors[layer] for layer in sorted(partial.errors)},
        "macs": macs,
        "macs_ratio": macs / host_macs(host.info),
    }
    return make_plan(host.info, kept, config.removed, provenance)


def _tuned_weights(host: Host, partial: Partial) -> dict[str, Tensor]:
    """Weights of tuned blocks under the host's names."""
    names = {id(module): name for name, module in host.model.named_modules()}
    return {
        f"{names[id(host.blocks[layer - 1])]}.{key}": value.detach().clone()
        for layer, block in sorted(partial.tuned.items())
        for key, value in block.state_dict().items()
    }
