"""The order in which patches leave one block of a host whose other blocks keep everything, by each score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from patchslim.hosts import Host, HostInfo
from patchslim.scores import radial_scores, random_scores, uniform_scores
from patchslim.scores.effect import Removal
from patchslim.search import SearchConfig
from patchslim.search.effects import Effects
from patchslim.search.features import Features
from patchslim.search.greedy import PROBES
from patchslim.search.network import Network, Partial
from patchslim.search.scoring import score_block

FROM_IMAGES = ("impact", "effect", "attention")
FIXED: dict[str, Callable[[HostInfo, int], Tensor]] = {  # the same whatever the images
    "random": lambda info, seed: random_scores(info.patches, seed),
    "radial": lambda info, seed: radial_scores(info.grid),
    "uniform": lambda info, seed: uniform_scores(info.grid),
}
NAMES = (*FROM_IMAGES, *FIXED)


def order_of(
    host: Host, features: Features | None, layer: int, score: Any, counts: Sequence[int], seed: int = 0
) -> list[int]:
    """All patches, those that stay longest in block `layer` (from 1) first; `counts` of them will be kept."""
    if score in FIXED:
        return _best_first(FIXED[score](host.info, seed * 1000 + layer))
    assert features is not None
    if score == "effect":
        return effect_order(host, features, layer, counts, seed)
    return _best_first(lone_scores(host, features, layer, score))


def lone_scores(host: Host, features: Features, layer: int, score: Any) -> Tensor:
    """The score of Algorithm 1 for block `layer` when all blocks above it keep everything: (N,)."""
    info = host.info
    above = dict.fromkeys(range(layer + 1, info.depth + 1), info.patches)
    if not info.reads_patches and layer < info.depth:
        above[info.depth] = 0  # nobody reads its patches
    everything = Partial(list(range(info.patches)), above)
    features.focus((layer - 1, layer))
    config = SearchConfig(score=score, tune_epochs=0)
    return score_block(Network(host, "drop"), features, everything, layer, config)


def _best_first(scores: Tensor) -> list[int]:
    order: list[int] = scores.argsort(descending=True, stable=True).tolist()
    return order


def effect_order(host: Host, features: Features, layer: int, counts: Sequence[int], seed: int = 0) -> list[int]:
    """By greedy reconstruction, as `search/greedy.py` does it over all blocks: patch after patch leaves this one, and
    the derivatives are taken anew at every count."""
    effects, gone = Effects(host, features, seed), list[int]()
    if layer > effects.blocks:  # nobody reads its patches
        return list(range(host.info.patches))
    for stage, count in enumerate(sorted(counts, reverse=True)):
        exits = torch.full((host.info.patches,), effects.blocks)
        exits[gone] = layer - 1
        parts = list(effects.batches(exits, PROBES, stage))
        # Leaving block l closes a patch's gates in all blocks from l on.
        jacobian = torch.cat([own[:, layer - 1 :].sum(dim=1).transpose(0, 1).flatten(1) for own, _ in parts], dim=1)
        removal = Removal(jacobian[None], torch.cat([residual.flatten() for _, residual in parts]))
        alive = torch.ones(host.info.patches, dtype=torch.long, device=jacobian.device)
        alive[gone] = 0
        gain = torch.tensor([0.0, 1.0], device=jacobian.device)
        while host.info.patches - len(gone) > count:
            patch = removal.best(alive, gain)
            removal.remove(patch, 1)
            alive[patch] = 0
            gone.append(patch)
    stay = sorted(set(range(host.info.patches)) - set(gone))
    return [*stay, *reversed(gone)]
