"""Training G: block by block from the first, on the features of the network as slimmed up to there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from patchslim.hosts import Host
from patchslim.plan import SlimPlan
from patchslim.search.config import SearchConfig
from patchslim.search.exact import exact_scores
from patchslim.search.features import Features
from patchslim.search.ledger import Ledger
from patchslim.search.topdown import Listener
from patchslim.slim.assemble import slim_blocks
from patchslim.slim.blocks import ReducingBlock
from patchslim.slim.predictor import Predictor, hidden_width, make_predictor
from patchslim.slim.tokens import Tokens, start, take

LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
IMAGES = 32  # per step
Batch = tuple[Tensor, Tensor, Tensor]  # y (B, t, d), place (B, t), log s (B, t)


class Trainer:
    """Fits one G per block to the exact log score of each image's patches."""

    def __init__(self, host: Host, features: Features, config: SearchConfig, ledger: Ledger, listen: Listener) -> None:
        self.host, self.info, self.features, self.config = host, host.info, features, config
        self.ledger, self.listen = ledger, listen

    def fit(
        self, plan: SlimPlan, layers: Sequence[int], begin: Mapping[int, Predictor] | None = None
    ) -> dict[int, Predictor]:
        """G for some blocks, for the network as a plan slims it. Where nothing is removed, every block may have one.

        `begin` are weights to begin with, of G trained on another network.
        """
        known = {layer: self._known(plan, layer) for layer in layers}
        predictors = {layer: predictor for layer, predictor in known.items() if predictor is not None}
        if len(predictors) < len(layers):
            for layer, batches in self._walk(plan, layers, predictors):
                if layer not in predictors:
                    self.listen({"event": "predictor", "block": layer})
                    fresh = self._fresh(layer)
                    if begin is None:
                        fresh.start_at(float(torch.cat([target.flatten() for _, _, target in batches]).mean()))
                    else:
                        fresh.load_state_dict(begin[layer].state_dict())
                    predictors[layer] = self._train(fresh, batches)
                    self.ledger.put(self._key(plan, layer), {}, predictors[layer])
        return predictors

    @torch.no_grad()
    def rank_correlations(self, plan: SlimPlan, predictors: Mapping[int, Predictor]) -> dict[int, float]:
        """Spearman's, of log ŝ with the exact score over the patches that come in: per block, mean over images."""
        found = {}
        for layer, batches in self._walk(plan, plan.choosing, predictors):
            pairs = [(predictors[layer](y, place), target) for y, place, target in batches]
            found[layer] = float(torch.cat([rank_correlation(*pair) for pair in pairs]).mean())
        return found

    def _walk(
        self, plan: SlimPlan, layers: Sequence[int], predictors: Mapping[int, Predictor]
    ) -> Iterator[tuple[int, list[Batch]]]:
        """Some blocks, from the first on, with what their G reads and should say; the slim network runs in between.

        A block's own G has to be in `predictors` when the walk goes on from it.
        """
        self.listen({"event": "exact"})
        scores = exact_scores(self.host, self.features, plan.counts, self.config.score or "effect", self.config.seed)
        self.features.focus((0,))
        states = [start(x, self.info.prefix_tokens, places=True, sources=False) for (x,) in self.features.batches(0)]
        targets = scores.split([len(state.x) for state in states])
        last = max(layers, default=0)
        for layer in range(1, last + 1):
            if layer in layers:
                yield layer, [self._seen(layer, *pair) for pair in zip(states, targets, strict=True)]
            if layer < last:
                states = self._through(plan, predictors, layer, states)

    def _key(self, plan: SlimPlan, layer: int) -> tuple[Any, ...]:
        return ("predictor", plan.counts, tuple(plan.drops), layer)

    def _known(self, plan: SlimPlan, layer: int) -> Predictor | None:
        if self.ledger.get(self._key(plan, layer)) is None:
            return None
        return self.ledger.block(self._key(plan, layer), self._fresh(layer))  # type: ignore[return-value]

    def _fresh(self, layer: int) -> Predictor:
        """An untrained G, always the same one for a block and a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed * 1000 + layer)
            return make_predictor(self.info, self.config.predictor, hidden_width(self.info, self.config.predictor)).to(
                self.features.device
            )

    @torch.no_grad()
    def _seen(self, layer: int, state: Tokens, scores: Tensor) -> Batch:
        """y of the patches that come in (B, t, d), where they sit (B, t), and their exact log scores (B, t)."""
        assert state.place is not None
        y = self.host.normed(self.host.blocks[layer - 1], state.x)[:, self.info.prefix_tokens :]
        return y, state.place, take(scores[:, layer - 1].to(y.device), state.place)

    @torch.no_grad()
    def _through(
        self, plan: SlimPlan, predictors: Mapping[int, Predictor], layer: int, states: list[Tokens]
    ) -> list[Tokens]:
        """The tokens that leave block `layer` of the slim network."""
        block: Any = slim_blocks(self.host, plan, predictors)[layer - 1]
        assert isinstance(block, ReducingBlock)
        block.last = False
        return [block(state) for state in states]

    def _train(self, predictor: Predictor, batches: Sequence[Batch]) -> Predictor:
        """Least squares on log s, over the patches that are there."""
        with torch.enable_grad():
            predictor.requires_grad_(True)
            parts = [part for batch in batches for part in zip(*(each.split(IMAGES) for each in batch), strict=True)]
            steps = self.config.predictor_epochs * len(parts)
            optimizer = torch.optim.AdamW(predictor.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
            for _ in range(self.config.predictor_epochs):
                for y, place, target in parts:
                    loss = (predictor(y, place) - target).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    schedule.step()
        return predictor.requires_grad_(False).eval()


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation of rows without ties: (B, n), (B, n) → (B,)."""
    first, second = (part.argsort(dim=1).argsort(dim=1).double() for part in (a, b))
    n = a.shape[1]
    return 1 - 6 * (first - second).square().sum(dim=1) / (n * (n * n - 1))
