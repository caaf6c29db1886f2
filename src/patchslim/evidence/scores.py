"""Scores of a block's patches, high ones stay: the paper's impact, its two ablations and two fixed patterns.

The impact score (Theorem 1, Eq. 6) is exact, without enumerating the H^(L-t) paths of heads. Every summand of Eq. 6 is
rank one, so its norm is a product: the column A_t^h[:, i] of the path part times the row U_t^h[i, :] of the patch's own
part. Summed over all paths, the column norms are the diagonal of one second moment M_t that obeys a recursion. Shapes:
B images, H heads, n tokens computed by a block, n_in tokens it reads.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from patchslim.evidence.features import Features
from patchslim.evidence.network import Network, Partial, sort_tokens
from patchslim.evidence.taylor import TINY, GateDerivatives
from patchslim.hosts import Host

Score = Literal["taylor", "impact", "attention", "random", "radial", "spread"]
MAP_BYTES = 2**28  # for one block's attention maps while scoring


@torch.no_grad()
def score_block(network: Network, features: Features, partial: Partial, layer: int, score: Score, seed: int) -> Tensor:
    """s_l over the patches, averaged over the images: (N,) on the CPU."""
    info = network.info
    if score == "random":
        return random_scores(info.patches, seed * 1000 + layer)
    if score == "radial":
        return radial_scores(info.grid)
    if score == "spread":
        return spread_scores(info.grid)
    order = torch.tensor([partial.order])
    total = torch.zeros(info.patches, dtype=torch.float64)
    for z, out in features.batches(layer - 1, layer):
        own = order.to(z.device).expand(len(z), -1)
        total += _shares(network, partial, layer, score, own, z, out).sum(dim=0).cpu()
    return total / features.count


@torch.no_grad()
def exact_scores(host: Host, features: Features, counts: Sequence[int], score: Score, seed: int = 0) -> Tensor:
    """log s_l of every image, s_l normalised to sum one over the patches: (images, depth, N) on the CPU. G learns it.

    Top-down as in Algorithm 1, but with each image's own nested patches: block l keeps those that block l+1 keeps and
    the best-scored others. Taylor importance is taken on the whole network, whatever the counts.
    """
    info, found = host.info, []
    if score == "taylor":
        return GateDerivatives(host, features, seed).log_scores()
    every = range(info.depth + 1)
    features.focus(every)
    for layers in features.batches(*every):
        order = torch.arange(info.patches, device=layers[0].device).repeat(len(layers[0]), 1)
        scores = torch.zeros(len(order), info.depth, info.patches)
        above = Partial([], {} if info.reads_patches else {info.depth: 0})
        for layer in range(info.depth - len(above.counts), 0, -1):
            own = _shares(Network(host), above, layer, score, order, layers[layer - 1], layers[layer]).float()
            scores[:, layer - 1] = own.clamp_min(TINY).log().cpu()
            kept, rest = order.tensor_split([above.counts.get(layer + 1, 0)], dim=1)
            best = own.gather(1, rest).argsort(dim=1, descending=True)
            order = torch.cat([kept, rest.gather(1, best)], dim=1)
            above.counts[layer] = counts[layer - 1]
        found.append(scores)
    return torch.cat(found)


def _shares(
    network: Network, above: Partial, layer: int, score: Score, order: Tensor, z: Tensor, out: Tensor
) -> Tensor:
    """The score of each image with its own order of patches (B, N), z = Z_{l-1} and out = Z_l (B, p + N, d), normalised
    to sum one (the paper averages; the scale is ours to hold): (B, N) in float64."""
    host, info = network.host, network.info
    chunk = max(1, MAP_BYTES // (4 * 3 * info.heads * info.tokens**2))  # a map, its product, and what softmax needs
    found = []
    for part in zip(order.split(chunk), z.split(chunk), out.split(chunk), strict=True):
        if score == "impact":
            tokens = _impact_of(network, above, layer, *part)
        else:
            tokens = attention_norm(host.attention(host.blocks[layer - 1], part[1], info.tokens))
        patches = tokens[:, info.prefix_tokens :].double()
        found.append(patches / patches.sum(dim=1, keepdim=True).clamp_min(1e-300))
    return torch.cat(found)


def _impact_of(network: Network, above: Partial, layer: int, order: Tensor, z: Tensor, out: Tensor) -> Tensor:
    """Eq. 6 for block `layer`, the maps above it taken from the network as already slimmed and tuned.

    z = Z_{l-1} and out = Z_l, both (B, p + N, d) in the host's order → (B, p + N) in the host's order.
    """
    host, prefix = network.host, network.info.prefix_tokens
    x, inputs = sort_tokens(out, order, prefix), []
    for higher in range(layer + 1, network.info.depth + 1):
        block, count = network.block(above, higher), above.counts[higher]
        inputs.append((block, x, prefix + count))
        x = network.run(block, x, count)
    maps = (host.attention(block, y, n) for block, y, n in reversed(inputs))
    moment = path_moment(maps, host.readout_moment(x).float())
    # Back from sorted tokens to the host's order; only the diagonal is needed.
    head = torch.arange(prefix, device=z.device).expand(len(z), -1)
    place = torch.cat([head, order + prefix], dim=1).argsort(dim=1)
    weight = moment.diagonal(dim1=1, dim2=2).gather(1, place)
    block = host.blocks[layer - 1]
    return impact(weight, host.attention(block, z, z.shape[1]), host.normed(block, z).float())


def propagate(moment: Tensor, attention: Tensor) -> Tensor:
    """One step down, M_{t-1} = Σ_h P_t^hᵀ M_t P_t^h / H; the 1/H only holds the range, it ranks nothing anew.

    moment (B, n, n), attention P_t (B, H, n, n_in) → (B, n_in, n_in).
    """
    heads = attention.shape[1]
    weighted = (moment.unsqueeze(1) @ attention).flatten(1, 2)  # (B, H·n, n_in)
    return attention.flatten(1, 2).transpose(1, 2) @ weighted / heads


def path_moment(attentions: Iterable[Tensor], readout: Tensor) -> Tensor:
    """M_t from the readout's M_L = R (B, n, n) and the maps of the blocks above t, the last block's first.

    Each map P (B, H, n, n_in) has the rows of the kept tokens, which come first. Maps are taken one at a time, so a
    generator need never hold two. Returns (B, n_in, n_in) over the tokens that leave block t.
    """
    moment = readout
    for attention in attentions:
        n = attention.shape[2]
        moment = propagate(moment[:, :n, :n], attention)  # D_t M_t D_t on sorted tokens
    return moment


def own_energy(attention: Tensor, inputs: Tensor) -> Tensor:
    """Σ_h ‖U_t^h[i, :]‖² with U_t^h = P_t^h |Z_{t-1}|: (B, H, n, n_in) and (B, n_in, d) → (B, n)."""
    return (attention @ inputs.abs().unsqueeze(1)).square().sum(dim=(1, 3))


def impact(path: Tensor, attention: Tensor, inputs: Tensor) -> Tensor:
    """s_{t,i} of Eq. 6, up to H^(L-t): diag M_t (B, n), P_t (B, H, n, n_in), Z_{t-1} (B, n_in, d) → (B, n)."""
    return path * own_energy(attention, inputs)


def attention_norm(attention: Tensor) -> Tensor:
    """The paper's "Attn": the norm of a token's column in the block's own map, (B, H, n, n_in) → (B, n_in)."""
    return attention.square().sum(dim=(1, 2)).sqrt()


def random_scores(patches: int, seed: int) -> Tensor:
    """A random order of the patches, the same for the same seed: (N,)."""
    return torch.rand(patches, generator=torch.Generator().manual_seed(seed))


def positions(grid: tuple[int, int]) -> Tensor:
    """Patch centres, row by row, with the middle of the grid as origin: (N, 2)."""
    return torch.cartesian_prod(*(torch.arange(size, dtype=torch.float64) - (size - 1) / 2 for size in grid))


def radial_scores(grid: tuple[int, int]) -> Tensor:
    """Near the centre first: (N,)."""
    distance: Tensor = torch.linalg.vector_norm(positions(grid), dim=1)
    return -distance


def spread_scores(grid: tuple[int, int]) -> Tensor:
    """An even spread at every count: each next patch is the one farthest from those before it (N,)."""
    places = positions(grid)
    nearest = torch.full((len(places),), torch.inf, dtype=torch.float64)
    scores = torch.empty(len(places))
    current = int(torch.linalg.vector_norm(places, dim=1).argmin())
    for rank in range(len(places)):
        scores[current] = -rank
        nearest = torch.minimum(nearest, torch.linalg.vector_norm(places - places[current], dim=1))
        nearest[current] = -1.0
        current = int(nearest.argmax())
    return scores
