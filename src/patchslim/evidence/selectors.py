"""Training of module G, the token selector: block by block, on the features of the network as slimmed up to there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from patchslim.cache import Cache
from patchslim.events import Listener
from patchslim.evidence.features import Features
from patchslim.evidence.scores import Score, exact_scores
from patchslim.hosts import Host
from patchslim.kernels.match import take
from patchslim.plan import SlimPlan
from patchslim.slimmed import slim_blocks
from patchslim.steps.selector import Selector, SelectorKind, hidden_width, make_selector
from patchslim.steps.tokens import start

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
        steps = [step.model_dump_json() for step in plan.steps]
        keys = {layer: ("selector", steps, layer) for layer in layers}
        known = [layer for layer, key in keys.items() if self.cache.get(key) is not None]
        selectors: dict[int, Any] = {layer: self.cache.module(keys[layer], self._fresh(layer)) for layer in known}
        if len(known) < len(layers):
            for layer, batches in self._walk(plan, layers, selectors):
                if layer not in selectors:
                    self.listen({"event": "selector", "block": layer})
                    fresh = self._fresh(layer)
                    if begin is None:
                        fresh.start_at_(float(torch.cat([target.flatten() for _, _, target in batches]).mean()))
                    else:
                        fresh.load_state_dict(begin[layer].state_dict())
                    selectors[layer] = self._train(fresh, batches)
                    self.cache.put(keys[layer], {}, selectors[layer])
        return selectors

    def _fresh(self, layer: int) -> Selector:
        """An untrained G, always the same one for a block and a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed * 1000 + layer)
            info = self.host.info
            return make_selector(info, self.kind, hidden_width(info, self.kind)).to(self.features.device)

    @torch.no_grad()
    def _walk(
        self, plan: SlimPlan, layers: Sequence[int], selectors: Mapping[int, Selector]
    ) -> Iterator[tuple[int, list[Batch]]]:
        """Some blocks, from the first on, with what their G reads and should say; the slim network runs in between.

        A block's own G has to be in `selectors` when the walk goes on from it.
        """
        self.listen({"event": "exact"})
        scores = exact_scores(self.host, self.features, plan.counts, self.score, self.seed)
        self.features.focus((0,))
        prefix, last = self.host.info.prefix_tokens, max(layers, default=0)
        states: list[Any] = [start(x, prefix) for (x,) in self.features.batches(0)]
        targets = scores.split([len(state.x) for state in states])
        for layer, block in enumerate(self.host.blocks[:last], start=1):
            if layer in layers:
                batches = []
                for state, target in zip(states, targets, strict=True):
                    y = self.host.normed(block, state.x)[:, prefix:]
                    batches.append((y, state.place, take(target[:, layer - 1].to(y.device), state.place)))
                yield layer, batches
            if layer < last:
                slim = slim_blocks(self.host, plan, selectors)[layer - 1]
                states = [slim.run(state) for state in states]

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
