"""Scores of a block's patches, averaged over the calibration images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from patchslim.scores import (
    attention_norm,
    impact,
    path_moment,
    radial_scores,
    random_scores,
    uniform_scores,
)
from patchslim.search.config import SearchConfig
from patchslim.search.features import Features
from patchslim.search.network import Network, Partial

MAP_BYTES = 2**28  # for one block's attention maps while scoring


def score_block(network: Network, features: Features, partial: Partial, layer: int, config: SearchConfig) -> Tensor:
    """s_l over the patches, higher stays longer: (N,) on the CPU."""
    info = network.info
    if config.score == "random":
        return random_scores(info.patches, config.seed * 1000 + layer)
    if config.score == "radial":
        return radial_scores(info.grid)
    if config.score == "uniform":
        return uniform_scores(info.grid)
    per_image = _impact_of if config.score == "impact" else _attention_of
    return _average(network, features, partial, layer, per_image)


PerImage = Callable[[Network, Partial, int, Tensor, Tensor], Tensor]


@torch.no_grad()
def _average(network: Network, features: Features, partial: Partial, layer: int, per_image: PerImage) -> Tensor:
    """The mean over images of the score normalised per image (the paper averages; the scale is ours to hold)."""
    info = network.info
    chunk = max(1, MAP_BYTES // (4 * 3 * info.heads * info.tokens**2))  # a map, its product, and what softmax needs
    total = torch.zeros(info.patches, dtype=torch.float64)
    count = 0
    for before, after in features.batches(layer - 1, layer):
        for z, out in zip(before.split(chunk), after.split(chunk), strict=True):
            scores = per_image(network, partial, layer, z, out)[:, info.prefix_tokens :].double()
            total += (scores / scores.sum(dim=1, keepdim=True).clamp_min(1e-300)).sum(dim=0).cpu()
            count += len(scores)
    return total / count


def _attention_of(network: Network, partial: Partial, layer: int, z: Tensor, out: Tensor) -> Tensor:
    block = network.host.blocks[layer - 1]
    return attention_norm(network.host.attention(block, z, z.shape[1]))


def _impact_of(network: Network, partial: Partial, layer: int, z: Tensor, out: Tensor) -> Tensor:
    """Eq. 6 for block `layer`, the maps above it taken from the network as already slimmed and tuned.

    z = Z_{l-1} and out = Z_l, both (B, p + N, d) in the host's order → (B, p + N) in the host's order.
    """
    host, prefix = network.host, network.info.prefix_tokens
    x, inputs = network.sort(out, partial.order), []
    for above in range(layer + 1, network.info.depth + 1):
        block, count = network.block(partial, above), partial.counts[above]
        inputs.append((block, x, prefix + count))
        x = network.run(block, x, count)
    maps = (host.attention(block, y, n) for block, y, n in reversed(inputs))
    moment = path_moment(maps, host.readout_moment(x).float())
    # Back from sorted tokens to the host's order.
    place = list(range(prefix)) + [prefix + patch for patch in partial.order]
    index = torch.tensor(place, device=z.device).argsort()
    moment = moment[:, index][:, :, index]
    block = host.blocks[layer - 1]
    return impact(moment, host.attention(block, z, z.shape[1]), host.normed(block, z).float())
