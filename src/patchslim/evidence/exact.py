"""The exact score of every image's own patches, on the network as slimmed for that image: what G learns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from patchslim.evidence.derivatives import GateDerivatives
from patchslim.evidence.features import Features
from patchslim.evidence.scoring import Score, score_images
from patchslim.hosts import Host

TINY = 1e-30


@torch.no_grad()
def exact_scores(host: Host, features: Features, counts: Sequence[int], score: Score, seed: int = 0) -> Tensor:
    """log s_l of every image, s_l normalised to sum one over the patches: (images, depth, N) on the CPU.

    Top-down as in Algorithm 1, but with each image's own nested patches: block l keeps those that block l+1 keeps and
    the best-scored others. Taylor importance is taken on the whole network, whatever the counts.
    """
    info = host.info
    if score == "taylor":
        return GateDerivatives(host, features, seed).log_scores()
    features.focus(tuple(range(info.depth + 1)))
    found = []
    for layers in features.batches(*range(info.depth + 1)):
        order = torch.arange(info.patches, device=layers[0].device).repeat(len(layers[0]), 1)
        scores = torch.zeros(len(order), info.depth, info.patches)
        above: dict[int, int] = {info.depth: 0} if not info.reads_patches else {}
        for layer in range(info.depth - len(above), 0, -1):
            own = score_images(host, score, layer, above, order, layers[layer - 1], layers[layer])
            scores[:, layer - 1] = own.clamp_min(TINY).log().cpu()
            order = _extended(order, above.get(layer + 1, 0), own)
            above[layer] = counts[layer - 1]
        found.append(scores)
    return torch.cat(found)


def _extended(order: Tensor, kept: int, score: Tensor) -> Tensor:
    """The first `kept` patches of each image's order as they are, the others by score: (B, N), (B, N) → (B, N)."""
    rest = order[:, kept:]
    best = score.gather(1, rest).argsort(dim=1, descending=True)
    return torch.cat([order[:, :kept], rest.gather(1, best)], dim=1)
