"""Algorithm 1: prune from the last block to the first, each block as far as the error of the next one allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchslim.cache import Cache, Key
from patchslim.errors import PatchslimError
from patchslim.events import Listener
from patchslim.evidence.features import Features
from patchslim.evidence.network import Network, Partial, relative_error
from patchslim.evidence.scoring import Score, score_block
from patchslim.hosts import Host
from patchslim.search.cost import Cost
from patchslim.search.schedule import make_divisible
from patchslim.search.tuning import tune_block


@dataclass(frozen=True)
class Algorithm:
    """The settings of Algorithm 1."""

    score: Score = "impact"
    step: int = 10  # r': patches added at a time
    tune_epochs: int = 3  # epochs of block tuning on cached features
    learning_rate: float = 5e-5  # of block tuning
    carry: bool = False  # removed patches stay as keys and values (Eq. 2 to the letter)
    seed: int = 0


class OverBudget(Exception):
    """The descent can't stay within its budget any more."""


class TopDown:
    """Decides the blocks of one host one by one, from the last to the first, remembering every decision."""

    def __init__(
        self,
        host: Host,
        features: Features,
        settings: Algorithm,
        cache: Cache,
        listen: Listener,
        cost: Cost,
    ) -> None:
        self.host, self.features, self.settings = host, features, settings
        self.cache, self.listen, self.cost = cache, listen, cost
        self.network = Network(host, settings.carry)

    @property
    def start(self) -> Partial:
        """Line 1: nothing of the last block but the prefix, if that is what the head reads; else nothing decided."""
        info = self.host.info
        return Partial(list(range(info.patches)), {} if info.reads_patches else {info.depth: 0})

    def search(self, tolerance: float, tune: bool, budget: float | None = None) -> Partial:
        """Lines 2 to 11. With a limit on the cost, OverBudget as soon as it can't be met."""
        partial = self.start
        for layer in self._undecided():
            partial = self._decide(partial, layer, self._candidates(partial, layer), tolerance, tune)
            if budget is not None and self.least_cost(partial, layer) > budget:
                raise OverBudget
        return partial

    def at_counts(self, counts: Mapping[int, int], tune: bool) -> Partial:
        """The same descent with the patches per block given instead of a tolerance."""
        partial = self.start
        for layer in self._undecided():
            partial = self._decide(partial, layer, [counts[layer]], math.inf, tune)
        return partial

    def _undecided(self) -> range:
        """Blocks that the start leaves open, the last one first."""
        return range(self.host.info.depth - len(self.start.counts), 0, -1)

    def least_cost(self, partial: Partial, layer: int) -> float:
        """The cost if every block below `layer` kept no more than `layer` does, the least that nesting allows."""
        counts = [partial.counts[max(layer, block)] for block in range(1, self.host.info.depth + 1)]
        return self.cost.of(counts)

    def _decide(self, partial: Partial, layer: int, candidates: Iterable[int], tolerance: float, tune: bool) -> Partial:
        """Lines 3 to 10 for one block."""
        self.listen({"event": "block", "block": layer, "tune": tune})
        self.features.focus(self._layers(layer))
        # Errors of untuned blocks hold for every tolerance; tuning stops where the tolerance says.
        key: Key = (layer, partial.key(), tune, tolerance if tune else None)
        entry = self.cache.get(key) or {"order": self._order(partial, layer), "errors": {}}
        order: list[int] = entry["order"]
        errors: dict[str, float] = dict(entry["errors"])
        block = self.host.blocks[layer - 1]
        tuned = self.cache.module(key, block) if tune and errors else None
        count = 0
        for count in candidates:
            if str(count) not in errors:
                if tune:
                    tuned = self._tuned(partial, layer, order, count, tuned or block)
                errors[str(count)] = self._error(partial, layer, order, count, tuned)
            if errors[str(count)] <= tolerance:
                break
        if len(errors) > len(entry["errors"]):
            self.cache.put(key, {"order": order, "errors": errors}, tuned)
        error = errors[str(count)]
        self.listen({"event": "decided", "block": layer, "patches": count, "error": error})
        return partial.extended(layer, order, count, error, tuned)

    def _layers(self, layer: int) -> tuple[int, int, int]:
        """The features a block's decision reads: Z_{l-1}, Z_l and Z_{l+1} (Z_L again for the readout)."""
        return layer - 1, layer, min(layer + 1, self.host.info.depth)

    def _order(self, partial: Partial, layer: int) -> list[int]:
        """Line 6: patches of m_{l+1} first, as they are; then the others by score."""
        scores = score_block(
            self.network, self.features, partial, layer, self.settings.score, self.settings.seed
        ).tolist()
        kept = partial.order[: partial.counts.get(layer + 1, 0)]
        others = sorted(set(range(self.host.info.patches)) - set(kept), key=lambda i: (-scores[i], i))
        return kept + others

    def _candidates(self, partial: Partial, layer: int) -> Iterator[int]:
        """Patches to try: those of m_{l+1}, then r' more at a time, to all (a pool needs at least one)."""
        info, multiple = self.host.info, self.cost.multiple
        count = make_divisible(info, multiple, partial.counts.get(layer + 1, 1))
        while count < info.patches:
            yield count
            count = make_divisible(info, multiple, count + self.settings.step)
        yield info.patches

    def _output_error(self, partial: Partial, layer: int, order: list[int], count: int) -> Callable[..., Tensor]:
        """E_{l+1} per image as a function of block l and a batch (Z_{l-1}, Z_l, Z_{l+1})."""
        network = self.network

        def error(block: nn.Module | None, batch: tuple[Tensor, ...]) -> Tensor:
            before, after, target = batch
            if block is None:
                # An untuned block computes its kept rows as the host did, so they are cached already.
                rows = network.sort(after, order, count)
                x = network.join(rows, network.sort(before, order)) if network.carry else rows
            else:
                x = network.run(block, network.sort(before, order), count)
            return relative_error(
                network.next_output(partial, layer, x), network.reference(partial, layer, after, target)
            )

        return error

    @torch.no_grad()
    def _error(self, partial: Partial, layer: int, order: list[int], count: int, block: nn.Module | None) -> float:
        """Line 8: E_{l+1}, averaged over the images."""
        error = self._output_error(partial, layer, order, count)
        batches = self.features.batches(*self._layers(layer))
        value = float(torch.cat([error(block, batch).double().cpu() for batch in batches]).mean())
        self.listen({"event": "error", "block": layer, "patches": count, "error": value})
        if not math.isfinite(value):
            raise PatchslimError(
                f"The error of block {layer} is not a finite number; the model's weights or the images are broken, "
                "or the learning rate is far too high."
            )
        return value

    def _tuned(self, partial: Partial, layer: int, order: list[int], count: int, block: nn.Module) -> nn.Module:
        """Line 7, never for the worse: a block that tuning did not help stays as it was."""
        tuned = tune_block(
            block,
            self._output_error(partial, layer, order, count),
            lambda: self.features.batches(*self._layers(layer)),
            self.settings.tune_epochs,
            self.settings.learning_rate,
        )
        before = self._error(partial, layer, order, count, block)
        after = self._error(partial, layer, order, count, tuned)
        return tuned if after < before else block
