"""The masked full-shape reference: the paper's Eq. 2 to the letter, with the host's own blocks. Slow; the oracle.

Nothing is dropped here. Every block runs on all tokens in the host's order; masks decide which rows take the new value
and which keys may be attended to. Where images choose for themselves, they go one by one, and pairs are found by
plain loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.hosts import Host, open_host
from patchslim.plan import SlimPlan
from patchslim.slim.assemble import as_weights_allow, load_choosers
from patchslim.slim.merge import FLOOR, LEARNT_FLOOR, TINY, unit_keys

Likeness = Callable[[int, int], float]  # of two patches, by their places


def masked_logits(
    model: nn.Module, plan: SlimPlan, images: Tensor, tuned: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The slimmed network's logits from the unslimmed host: images (B, C, H, W) → (B, classes).

    `tuned` are the weights of G or of distances, as in `apply`; other weights are the model's own.
    """
    host = open_host(model)
    plan.check_fits(host.info)
    if plan.removed != "merge" and not plan.per_image:
        return _static_logits(host, plan, images)
    plan = as_weights_allow(plan, tuned or {})
    choosers = load_choosers(host, plan, tuned or {})
    x = host.embed(images)
    return torch.cat([_OneImage(host, plan, choosers).logits(tokens) for tokens in x.split(1)])


def _static_logits(host: Host, plan: SlimPlan, images: Tensor) -> Tensor:
    """Drop and carry: the same masks for all images."""
    prefix = host.info.prefix_tokens
    x = host.embed(images)
    alive = torch.ones(host.info.tokens, dtype=torch.bool, device=x.device)
    for block, kept in zip(host.blocks, plan.kept, strict=True):
        computed = torch.zeros_like(alive)  # diag(m_l)
        computed[:prefix] = True
        computed[torch.tensor(kept, dtype=torch.long, device=x.device) + prefix] = True
        seen = torch.zeros_like(alive, dtype=x.dtype).masked_fill(~alive, -torch.inf)  # added to the attention logits
        out = block(x, seen.expand(1, 1, len(alive), len(alive)))
        x = torch.where(computed[:, None], out, x)
        if plan.removed == "drop":
            alive = computed
    return host.logits(x[:, alive])


@dataclass
class _OneImage:
    """One image's way through the network. `alive` lists its patches in the slim model's order."""

    host: Host
    plan: SlimPlan
    choosers: Mapping[int, nn.Module]

    def logits(self, x: Tensor) -> Tensor:
        """x (1, p + N, d) → (1, classes)."""
        prefix, patches = self.host.info.prefix_tokens, self.host.info.patches
        alive, size = list(range(patches)), [1.0] * patches
        for layer in range(1, self.host.info.depth + 1):
            kept, into, weight = self._choose(layer, x, alive, size)
            rows, new_size = x.clone(), list(size)
            for patch in kept:
                group = [patch, *(gone for gone, target in into.items() if target == patch)]
                new_size[patch] = sum(size[member] for member in group)
                if len(group) > 1:
                    members = {member: x[:, prefix + member] for member in group}
                    rows[:, prefix + patch] = self._average(members, weight)
            computed = [*range(prefix), *(prefix + patch for patch in kept)]
            out = x.clone()
            out[:, computed] = self._block(layer, rows, x, alive, size)[:, computed]
            x = out
            alive, size = kept, new_size
        return self.host.logits(x[:, [*range(prefix), *(prefix + patch for patch in sorted(alive))]])

    def _block(self, layer: int, rows: Tensor, x: Tensor, alive: list[int], size: list[float]) -> Tensor:
        """The host's own block with queries from `rows`, keys and values from `x`, both (1, p + N, d).

        It runs on both at once, `rows` first; only living tokens of `x` may be attended to, log(size) on their logits.
        """
        tokens, prefix = x.shape[1], self.host.info.prefix_tokens
        bias = torch.full((2 * tokens,), -torch.inf, device=x.device)
        bias[tokens : tokens + prefix] = 0
        for patch in alive:
            bias[tokens + prefix + patch] = torch.tensor(size[patch]).log()
        block: Any = self.host.blocks[layer - 1]
        mask = bias.to(x).expand(1, 1, 2 * tokens, 2 * tokens)
        return block(torch.cat([rows, x], dim=1), mask)[:, :tokens]  # type: ignore[no-any-return]

    def _average(self, members: Mapping[int, Tensor], weight: Mapping[int, float]) -> Tensor:
        """The weighted mean of some tokens (1, d), at their mean length where images choose for themselves."""
        total = sum(weight[patch] for patch in members)
        mean: Tensor = torch.stack([token * (weight[patch] / total) for patch, token in members.items()]).sum(dim=0)
        if not self.plan.varies:
            return mean
        length = torch.stack([token.norm() * (weight[patch] / total) for patch, token in members.items()]).sum()
        scaled: Tensor = mean * length / mean.norm()
        return scaled

    def _choose(
        self, layer: int, x: Tensor, alive: list[int], size: list[float]
    ) -> tuple[list[int], dict[int, int], dict[int, float]]:
        """(patches that stay, patch that goes → patch it joins, how much each counts in an average)."""
        sizes = {patch: size[patch] for patch in alive}
        plan, count = self.plan, self.plan.counts[layer - 1]
        if plan.into is not None:
            kept, target = plan.kept[layer - 1], plan.into
            gone = [patch for patch in alive if patch not in kept]
            return kept, {patch: target[patch] for patch in gone if target[patch] >= 0}, sizes
        if layer not in plan.choosing:
            return (alive if count else []), {}, sizes
        if not plan.merges(layer) and plan.select == "static":
            return plan.kept[layer - 1], {}, sizes
        prefix = self.host.info.prefix_tokens
        block = self.host.blocks[layer - 1]
        incoming = self.host.math.read(block, x[:, [*range(prefix), *(prefix + patch for patch in alive)]])
        keys = unit_keys(incoming.k, prefix)[0]
        near: Likeness = lambda i, j: float(keys[i] @ keys[j])  # noqa: E731
        weight, weighed = list(sizes.values()), self.host.info.reads_class
        if weighed:
            every = torch.tensor([[1.0] * prefix + weight]).to(x)
            weight = (self.host.math.class_attention(block, incoming, every)[0, prefix:] * len(alive)).tolist()
        if plan.select == "static":
            kept, into = plan.kept[layer - 1], _joins(alive, plan.kept[layer - 1], near)
        elif plan.select == "matched":
            floor, halves = FLOOR if plan.distance is None else LEARNT_FLOOR, None
            matter = [heed + floor for heed in weight] if weighed else [1.0] * len(alive)
            if plan.distance is not None:
                far = self.choosers[layer](x[0, [prefix + patch for patch in alive]])
                near = lambda i, j: 1 - float((far[i, :-1] - far[j, :-1]).square().sum())  # noqa: E731
                matter = [math.exp(float(told)) * own**2 for told, own in zip(far[:, -1], matter, strict=True)]
                halves = _lighter(near, matter)
            kept, into = _pairs(alive, near, matter, len(alive) - count, halves)
        else:
            score = self.choosers[layer](incoming.y[:, prefix:], torch.tensor([alive], device=x.device))[0].tolist()
            if plan.merges(layer):
                kept, into = _pairs(alive, near, _matter(score, weight if weighed else None), len(alive) - count)
            else:
                kept, into = self._predicted(layer, dict(zip(alive, score, strict=True))), {}
        return kept, into if plan.merges(layer) else {}, dict(zip(alive, weight, strict=True))

    def _predicted(self, layer: int, score: dict[int, float]) -> list[int]:
        """The patches G keeps: the best by count, or those past the threshold and at least the best few."""
        plan, best = self.plan, sorted(score, key=lambda patch: -score[patch])
        assert plan.predictor is not None
        thresholds = plan.predictor.thresholds
        if thresholds is None or layer == plan.host.depth:
            return best[: plan.counts[layer - 1]]
        past = [patch for patch in score if score[patch] > thresholds[layer - 1]]
        return sorted({*past, *best[: max(1, plan.counts[-1])]})


def _pairs(
    alive: list[int],
    near: Likeness,
    weight: list[float],
    r: int,
    halves: tuple[Sequence[int], Sequence[int]] | None = None,
) -> tuple[list[int], dict[int, int]]:
    """Every patch of one half, even ones unless told, and its nearest of the other; the r pairs of least weight times
    distance become one. All but `alive` go by places in it."""
    movers, hosts = halves or (range(0, len(alive), 2), range(1, len(alive), 2))
    nearest = {i: max(hosts, key=lambda j: near(i, j)) for i in movers}
    cost = {i: weight[i] * max(1 - near(i, nearest[i]), TINY) for i in movers}
    ranked = sorted(movers, key=lambda i: cost[i])
    into = {alive[i]: alive[nearest[i]] for i in ranked[:r]}
    return [alive[i] for i in [*ranked[r:], *hosts]], into


def _joins(alive: list[int], kept: list[int], near: Likeness) -> dict[int, int]:
    """What patches that go join: the kept one that each is most like."""
    place = {patch: index for index, patch in enumerate(alive)}
    gone = [patch for patch in alive if patch not in kept]
    return {patch: max(kept, key=lambda other: near(place[patch], place[other])) for patch in gone}


def _lighter(near: Likeness, weight: list[float]) -> tuple[list[int], list[int]]:
    """The half of the patches that weigh least beside the one nearest to them, and the others."""
    every = range(len(weight))
    nearest = [max((j for j in every if j != i), key=lambda j: near(i, j)) for i in every]
    order = sorted(every, key=lambda i: weight[i] / weight[nearest[i]])
    half = (len(weight) + 1) // 2
    return order[:half], order[half:]


def _matter(score: list[float], seen: list[float] | None) -> list[float]:
    """What patches weigh where G is asked: the geometric mean of its share and the class token's attention, or the
    share alone."""
    total = sum(math.exp(own) for own in score)
    share = [math.exp(own) / total for own in score]
    return share if seen is None else [math.sqrt(own * max(heed, TINY)) for own, heed in zip(share, seen, strict=True)]
