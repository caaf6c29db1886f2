"""Training of module G, the token selector: block by block, on the features of the network as slimmed up to there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from patchslim.cache import Cache
from patchslim.events import Listener
from patchslim.evidence.exact import exact_scores
from patchslim.evidence.features import Features
from patchslim.evidence.scoring import Score
from patchslim.hosts import Host
from patchslim.kernels.match import take
from patchslim.plan import SlimPlan
from patchslim.slim import slim_blocks
from patchslim.steps.selector import Selector, SelectorKind, hidden_width, make_selector
from patchslim.steps.tokens import Tokens, start

LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
IMAGES = 32  # per step
Batch = tuple[Tensor, Tensor, Tensor]  # y (B, t, d), place (B, t), log s (B, t)


@dataclass
class SelectorTraining:
    """Fits one G per block to the exact log score of each image's patches."""

    host: Host
    features: Features
    cache: Cache
    listen: Listener
    kind: SelectorKind
    score: Score
    epochs: int
    seed: int

    def fit(
        self, plan: SlimPlan, layers: Sequence[int], begin: Mapping[int, Selector] | None = None
    ) -> dict[int, Selector]:
        """G for some blocks, for the network as a plan slims it. Where nothing is removed, every block may have one.

        `begin` are weights to begin with, of G trained on another network.
        """
        known = {layer: self._known(plan, layer) for layer in layers}
        selectors = {layer: selector for layer, selector in known.items() if selector is not None}
        if len(selectors) < len(layers):
            for layer, batches in self._walk(plan, layers, selectors):
                if layer not in selectors:
                    self.listen({"event": "selector", "block": layer})
                    fresh = self._fresh(layer)
                    if begin is None:
                        fresh.start_at_(float(torch.cat([target.flatten() for _, _, target in batches]).mean()))
                    else:
                        fresh.load_state_dict(begin[layer].state_dict())
                    selectors[layer] = self._train(fresh, batches)
                    self.cache.put(self._key(plan, layer), {}, selectors[layer])
        return selectors

    @torch.no_grad()
    def rank_correlations(self, plan: SlimPlan, selectors: Mapping[int, Selector]) -> dict[int, float]:
        """Spearman's, of log ŝ with the exact score over the patches that come in: per block, mean over images."""
        found = {}
        for layer, batches in self._walk(plan, plan.choosing, selectors):
            pairs = [(selectors[layer](y, place), target) for y, place, target in batches]
            found[layer] = float(torch.cat([rank_correlation(*pair) for pair in pairs]).mean())
        return found

    def _walk(
        self, plan: SlimPlan, layers: Sequence[int], selectors: Mapping[int, Selector]
    ) -> Iterator[tuple[int, list[Batch]]]:
        """Some blocks, from the first on, with what their G reads and should say; the slim network runs in between.

        A block's own G has to be in `selectors` when the walk goes on from it.
        """
        self.listen({"event": "exact"})
        scores = exact_scores(self.host, self.features, plan.counts, self.score, self.seed)
        self.features.focus((0,))
        states = [start(x, self.host.info.prefix_tokens) for (x,) in self.features.batches(0)]
        targets = scores.split([len(state.x) for state in states])
        last = max(layers, default=0)
        for layer in range(1, last + 1):
            if layer in layers:
                yield layer, [self._seen(layer, *pair) for pair in zip(states, targets, strict=True)]
            if layer < last:
                states = self._through(plan, selectors, layer, states)

    def _key(self, plan: SlimPlan, layer: int) -> tuple[Any, ...]:
        return ("selector", [step.model_dump_json() for step in plan.steps], layer)

    def _known(self, plan: SlimPlan, layer: int) -> Selector | None:
        if self.cache.get(self._key(plan, layer)) is None:
            return None
        return self.cache.module(self._key(plan, layer), self._fresh(layer))  # type: ignore[return-value]

    def _fresh(self, layer: int) -> Selector:
        """An untrained G, always the same one for a block and a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed * 1000 + layer)
            info = self.host.info
            return make_selector(info, self.kind, hidden_width(info, self.kind)).to(self.features.device)

    @torch.no_grad()
    def _seen(self, layer: int, state: Tokens, scores: Tensor) -> Batch:
        """y of the patches that come in (B, t, d), where they sit (B, t), and their exact log scores (B, t)."""
        assert state.place is not None
        y = self.host.normed(self.host.blocks[layer - 1], state.x)[:, self.host.info.prefix_tokens :]
        return y, state.place, take(scores[:, layer - 1].to(y.device), state.place)

    @torch.no_grad()
    def _through(
        self, plan: SlimPlan, selectors: Mapping[int, Selector], layer: int, states: list[Tokens]
    ) -> list[Tokens]:
        """The tokens that leave block `layer` of the slim network."""
        block = slim_blocks(self.host, plan, selectors)[layer - 1]
        return [block.run(state) for state in states]  # type: ignore[misc]

    def _train(self, selector: Selector, batches: Sequence[Batch]) -> Selector:
        """Least squares on log s, over the patches that are there."""
        with torch.enable_grad():
            selector.requires_grad_(True)
            parts = [part for batch in batches for part in zip(*(each.split(IMAGES) for each in batch), strict=True)]
            optimizer = torch.optim.AdamW(selector.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs * len(parts))
            for _ in range(self.epochs):
                for y, place, target in parts:
                    loss = (selector(y, place) - target).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    schedule.step()
        return selector.requires_grad_(False).eval()


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation of rows without ties: (B, n), (B, n) → (B,)."""
    first, second = (part.argsort(dim=1).argsort(dim=1).double() for part in (a, b))
    n = a.shape[1]
    return 1 - 6 * (first - second).square().sum(dim=1) / (n * (n * n - 1))
