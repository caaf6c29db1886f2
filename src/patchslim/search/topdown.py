"""Algorithm 1: prune from the last block to the first, each block as far as the error of the next one allows; and from
a budget to its tolerance, by bisection."""

import copy
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
from patchslim.evidence.scores import Score, score_block
from patchslim.hosts import Host, HostInfo
from patchslim.macs import host_macs
from patchslim.search.cost import Cost
from patchslim.search.schedule import Schedule, make_divisible

CLOSE = 0.01  # a plan within this of the asked ratio needs no finer tolerance
FIRST_GUESS, STRIDE, FINEST, LEAST = -1.5, 0.6, 0.02, -12.0  # of log10 ε
Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module | None, Batch], Tensor]  # (block, (Z_{l-1}, Z_l, Z_{l+1})) → E_{l+1} per image (B,)


class OverBudget(Exception):
    """The descent can't stay within its budget any more."""


@dataclass
class TopDown:
    """Decides the blocks of one host one by one, from the last to the first, remembering every decision."""

    host: Host
    features: Features
    cache: Cache
    listen: Listener
    cost: Cost
    score: Score
    step: int  # r': patches added at a time
    tune_epochs: int  # epochs of block tuning on cached features
    learning_rate: float  # of block tuning
    carry: bool  # removed patches stay as keys and values (Eq. 2 to the letter)
    seed: int

    def __post_init__(self) -> None:
        self.info, self.network = self.host.info, Network(self.host, self.carry)

    def search(
        self, tolerance: float, tune: bool, budget: float = math.inf, counts: Mapping[int, int] | None = None
    ) -> Partial:
        """All lines. OverBudget as soon as a limit on the cost can't be met."""
        # Line 1: nothing of the last block but the prefix, if that is what the head reads; else nothing decided.
        partial = Partial(list(range(self.info.patches)), {} if self.info.reads_patches else {self.info.depth: 0})
        for layer in range(self.info.depth - len(partial.counts), 0, -1):
            candidates = self._candidates(partial, layer) if counts is None else [counts[layer]]
            partial = self._decide(partial, layer, candidates, tolerance, tune)
            if self.least_cost(partial, layer) > budget:
                raise OverBudget
        return partial

    def at_counts(self, counts: Mapping[int, int], tune: bool) -> Partial:
        """The same descent with the patches per block given instead of a tolerance."""
        return self.search(math.inf, tune, counts=counts)

    def least_cost(self, partial: Partial, layer: int) -> float:
        """The cost if every block below `layer` kept no more than `layer` does, the least that nesting allows."""
        return self.cost.of([partial.counts[max(layer, block)] for block in range(1, self.info.depth + 1)])

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
                loss = self._loss(partial, layer, order, count)
                if tune:
                    tuned = self._tuned(loss, layer, count, tuned or block)
                errors[str(count)] = self._error(loss, layer, count, tuned)
            if errors[str(count)] <= tolerance:
                break
        if len(errors) > len(entry["errors"]):
            self.cache.put(key, {"order": order, "errors": errors}, tuned)
        error = errors[str(count)]
        self.listen({"event": "decided", "block": layer, "patches": count, "error": error})
        return partial.extended(layer, order, count, error, tuned)

    def _layers(self, layer: int) -> tuple[int, int, int]:
        """The features a block's decision reads: Z_{l-1}, Z_l and Z_{l+1} (Z_L again for the readout)."""
        return layer - 1, layer, min(layer + 1, self.info.depth)

    def _order(self, partial: Partial, layer: int) -> list[int]:
        """Line 6: patches of m_{l+1} first, as they are; then the others by score."""
        scores = score_block(self.network, self.features, partial, layer, self.score, self.seed).tolist()
        kept = partial.order[: partial.counts.get(layer + 1, 0)]
        return kept + sorted(set(range(self.info.patches)) - set(kept), key=lambda i: (-scores[i], i))

    def _candidates(self, partial: Partial, layer: int) -> Iterator[int]:
        """Patches to try: those of m_{l+1}, then r' more at a time, to all (a pool needs at least one)."""
        info, multiple = self.info, self.cost.multiple
        count = make_divisible(info, multiple, partial.counts.get(layer + 1, 1))
        while count < info.patches:
            yield count
            count = make_divisible(info, multiple, count + self.step)
        yield info.patches

    def _loss(self, partial: Partial, layer: int, order: list[int], count: int) -> Loss:
        """What line 7 lowers and line 8 measures, when block l computes so many patches of an order."""
        network = self.network

        def loss(block: nn.Module | None, batch: Batch) -> Tensor:
            before, after, target = batch
            if block is not None:
                x = network.run(block, network.sort(before, order), count)
            else:  # an untuned block computes its kept rows as the host did, so they are cached already
                x = network.sort(after, order, count)
                if network.carry:  # the others follow as they came in
                    x = torch.cat([x, network.sort(before, order)[:, x.shape[1] :]], dim=1)
            reference = network.reference(partial, layer, after, target)
            return relative_error(network.next_output(partial, layer, x), reference)

        return loss

    @torch.no_grad()
    def _error(self, loss: Loss, layer: int, count: int, block: nn.Module | None) -> float:
        """Line 8: E_{l+1}, averaged over the images."""
        batches = self.features.batches(*self._layers(layer))
        value = float(torch.cat([loss(block, batch).double().cpu() for batch in batches]).mean())
        self.listen({"event": "error", "block": layer, "patches": count, "error": value})
        if not math.isfinite(value):
            raise PatchslimError(
                f"The error of block {layer} is not a finite number; the model's weights or the images are broken, "
                "or the learning rate is far too high."
            )
        return value

    def _tuned(self, loss: Loss, layer: int, count: int, block: nn.Module) -> nn.Module:
        """Line 7, never for the worse: a block that tuning did not help stays as it was."""
        passes = (self.features.batches(*self._layers(layer)) for _ in range(self.tune_epochs))
        tuned = tune_block(block, loss, passes, self.learning_rate)
        before = self._error(loss, layer, count, block)
        return tuned if self._error(loss, layer, count, tuned) < before else block


def tune_block(block: nn.Module, loss: Loss, passes: Iterable[Iterable[Batch]], learning_rate: float) -> nn.Module:
    """A copy of the block, tuned on some passes over the images so that block l+1 sees what it saw before; the block
    itself stays as it was, and everything else in `loss`."""
    tuned = copy.deepcopy(block)
    tuned.requires_grad_(True)
    optimizer = torch.optim.AdamW(tuned.parameters(), lr=learning_rate, weight_decay=0.0)
    with torch.enable_grad():
        for batches in passes:
            for batch in batches:
                error = loss(tuned, batch).mean()
                optimizer.zero_grad()
                error.backward()
                optimizer.step()
    for own, parameter in zip(tuned.parameters(), block.parameters(), strict=True):
        own.requires_grad_(parameter.requires_grad)
    return tuned


def bisect_tolerance(search: TopDown, target: float) -> tuple[float, Partial]:
    """The smallest tolerance found whose plan meets the ratio, and that plan. No tuning on the way.

    The cost falls as the tolerance grows. A run over budget stops early and only tells that the tolerance is too small.
    """
    whole = host_macs(search.info)
    most = search.cost.of(Schedule(search.info).everything) / whole
    too_small: float | None = None
    found: tuple[float, Partial] | None = None
    guess = FIRST_GUESS
    while True:
        search.listen({"event": "tolerance", "tolerance": 10**guess})
        try:
            partial = search.search(10**guess, tune=False, budget=target * whole)
        except OverBudget:
            too_small = guess
        else:
            found = guess, partial
            ratio = search.least_cost(partial, 1) / whole
            search.listen({"event": "ratio", "tolerance": 10**guess, "macs_ratio": ratio})
            if ratio >= min(target, most) - CLOSE:
                break
        if found is None:
            guess += STRIDE
        elif too_small is None:
            if guess < LEAST:  # errors of zero at every count: a smaller tolerance changes nothing
                break
            guess -= STRIDE
        elif found[0] - too_small < FINEST:
            break
        else:
            guess = (too_small + found[0]) / 2
    return 10 ** found[0], found[1]


def spend_rest(
    info: HostInfo, cost: Cost, counts: Mapping[int, int], errors: Mapping[int, float], target: float
) -> dict[int, int]:
    """Give what the budget has left to the blocks with the largest error, a patch at a time (or as many as the device
    likes), keeping the nesting."""
    budget = target * host_macs(info)
    filled = dict(counts)
    blocks = sorted(errors, key=lambda layer: (-errors[layer], layer))
    grew = True
    while grew:
        grew = False
        for layer in blocks:
            above = filled[layer - 1] if layer > 1 else info.patches
            more = filled | {layer: make_divisible(info, cost.multiple, filled[layer] + 1)}
            price = cost.of([more[layer] for layer in range(1, info.depth + 1)])
            if more[layer] <= above and filled[layer] < above and price <= budget:
                filled, grew = more, True
    return filled
