"""Scores of a block's patches: of each image, and averaged over the calibration images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from patchslim.evidence.features import Features
from patchslim.evidence.impact import impact, path_moment
from patchslim.evidence.network import Network, Partial, sort_tokens
from patchslim.evidence.simple import attention_norm, radial_scores, random_scores, spread_scores
from patchslim.hosts import Host

Score = Literal["taylor", "impact", "attention", "random", "radial", "spread"]
MAP_BYTES = 2**28  # for one block's attention maps while scoring
Above = list[tuple[nn.Module, int]]  # the blocks above, as slimmed and tuned, with the patches each computes


def score_block(network: Network, features: Features, partial: Partial, layer: int, score: Score, seed: int) -> Tensor:
    """s_l over the patches, higher stays longer: (N,) on the CPU."""
    info = network.info
    if score == "random":
        return random_scores(info.patches, seed * 1000 + layer)
    if score == "radial":
        return radial_scores(info.grid)
    if score == "spread":
        return spread_scores(info.grid)
    layers = range(layer + 1, info.depth + 1)
    above = [(network.block(partial, block), partial.counts[block]) for block in layers]
    order = torch.tensor([partial.order])
    run: Run = network.run
    total = torch.zeros(info.patches, dtype=torch.float64)
    with torch.no_grad():
        for before, after in features.batches(layer - 1, layer):
            own = order.to(before.device).expand(len(before), -1)
            total += _shares(network.host, score, layer, above, run, own, before, after).sum(dim=0).cpu()
    return total / features.count


Run = Callable[[nn.Module, Tensor, int], Tensor]  # a slimmed block on sorted tokens that computes so many patches


def score_images(
    host: Host, score: Score, layer: int, counts: Mapping[int, int], order: Tensor, z: Tensor, out: Tensor
) -> Tensor:
    """s_l of each image with its own order of patches, normalised to sum one: z = Z_{l-1} and out = Z_l (B, p + N, d),
    order (B, N) → (B, N). The blocks above drop all but the first `counts` patches of that order."""
    above = [(host.blocks[block - 1], counts[block]) for block in range(layer + 1, host.info.depth + 1)]
    run = Network(host).run
    return _shares(host, score, layer, above, run, order, z, out).float()


def _shares(
    host: Host, score: Score, layer: int, above: Above, run: Run, order: Tensor, z: Tensor, out: Tensor
) -> Tensor:
    """The score normalised per image (the paper averages; the scale is ours to hold): (B, N) in float64."""
    info = host.info
    chunk = max(1, MAP_BYTES // (4 * 3 * info.heads * info.tokens**2))  # a map, its product, and what softmax needs
    found = []
    for part in zip(order.split(chunk), z.split(chunk), out.split(chunk), strict=True):
        if score == "impact":
            tokens = _impact_of(host, layer, above, run, *part)
        else:
            tokens = attention_norm(host.attention(host.blocks[layer - 1], part[1], part[1].shape[1]))
        patches = tokens[:, info.prefix_tokens :].double()
        found.append(patches / patches.sum(dim=1, keepdim=True).clamp_min(1e-300))
    return torch.cat(found)


def _impact_of(host: Host, layer: int, above: Above, run: Run, order: Tensor, z: Tensor, out: Tensor) -> Tensor:
    """Eq. 6 for block `layer`, the maps above it taken from the network as already slimmed and tuned.

    z = Z_{l-1} and out = Z_l, both (B, p + N, d) in the host's order → (B, p + N) in the host's order.
    """
    prefix = host.info.prefix_tokens
    x, inputs = sort_tokens(out, order, prefix), []
    for block, count in above:
        inputs.append((block, x, prefix + count))
        x = run(block, x, count)
    maps = (host.attention(block, y, n) for block, y, n in reversed(inputs))
    moment = path_moment(maps, host.readout_moment(x).float())
    # Back from sorted tokens to the host's order; only the diagonal is needed.
    head = torch.arange(prefix, device=z.device).expand(len(z), -1)
    place = torch.cat([head, order + prefix], dim=1).argsort(dim=1)
    weight = moment.diagonal(dim1=1, dim2=2).gather(1, place)
    block = host.blocks[layer - 1]
    return impact(weight, host.attention(block, z, z.shape[1]), host.normed(block, z).float())
