"""Groups of patches that are the same for every image: `slim.merge`'s matching on likenesses averaged over images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from patchslim.hosts import Host
from patchslim.search.features import Features
from patchslim.slim.merge import match_halves, unit_keys, weight_of
from patchslim.slim.predictor import as_fp32


@dataclass(frozen=True)
class Likeness:
    """Averages over the calibration images, per block."""

    similarity: Tensor  # (depth, N, N): cosine of keys
    importance: Tensor | None  # (depth, N): the class token's attention, mean 1


@torch.no_grad()
def likeness(host: Host, features: Features) -> Likeness:
    """How alike patches are in every block of the unslimmed host, and how much the class token attends to them."""
    info = host.info
    similarity = torch.zeros(info.depth, info.patches, info.patches, dtype=torch.float64)
    importance = torch.zeros(info.depth, info.patches, dtype=torch.float64)
    for layer, block in enumerate(host.blocks, start=1):
        features.focus((layer - 1,))
        for (x,) in features.batches(layer - 1):
            incoming = host.math.read(block, x)
            keys = unit_keys(as_fp32(incoming.k), info.prefix_tokens)
            similarity[layer - 1] += torch.einsum("bid,bjd->ij", keys, keys).double().cpu()
            if info.reads_class:
                attention = host.math.class_attention(block, incoming, None)[:, info.prefix_tokens :]
                importance[layer - 1] += (attention * info.patches).sum(dim=0).double().cpu()
    count = features.count
    weights = (importance / count).float() if info.reads_class else None
    return Likeness((similarity / count).float(), weights)


def static_groups(
    found: Likeness, counts: Sequence[int], drops: Sequence[int] = ()
) -> tuple[list[list[int]], list[int]]:
    """(kept patches per block, the patch each removed one joins or -1), block after block from the first."""
    alive = list(range(found.similarity.shape[1]))
    into, kept = [-1] * len(alive), []
    for layer, count in enumerate(counts, start=1):
        if 0 < count < len(alive):
            alive = _one_block(found, layer, alive, count, None if layer in drops else into)
        elif count == 0:
            alive = []
        kept.append(sorted(alive))
    return kept, into


def _one_block(found: Likeness, layer: int, alive: list[int], count: int, into: list[int] | None) -> list[int]:
    """The patches that stay, in the order in which the next block pairs them; notes in `into` what the others join."""
    similarity = found.similarity[layer - 1][alive[::2]][:, alive[1::2]]
    importance = None if found.importance is None else found.importance[layer - 1][alive[::2]][None]
    pairs = match_halves(similarity[None], len(alive) - count, weight_of(importance))
    stay = [alive[place] for place in pairs.keep[0].tolist()]
    if into is not None:
        for gone, target in zip(pairs.gone[0].tolist(), pairs.into[0].tolist(), strict=True):
            into[alive[gone]] = stay[target]
    return stay
