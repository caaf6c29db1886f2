"""Coverage: which patches should stay so that every other one finds a patch like itself among them.

Facility location, from the end: of the patches that are left the one goes whose loss costs least, and so on down to
one. What going costs is what it adds to Σ_i w_i min_j d_ij² over the patches i that are gone, j those that stay: its
own distance to the nearest, and what those lose that were nearest to it and have to go on to their second nearest.
Distances and weights are those that the steps will go by.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from patchslim.evidence.features import Features
from patchslim.evidence.taylor import read_blocks
from patchslim.hosts import Host
from patchslim.kernels.match import apart, weigh

MOST_IMAGES = 128  # more say the same
PAIR_BYTES = 2**28  # for the distances in one block
SPARE = 10  # a search soon asks for a few more to go: this part of all patches is put in order at once


class CoverageSets:
    """Which patches stay in each block, whatever the counts: those that cover the others best by its distance."""

    def __init__(self, host: Host, features: Features, distances: Mapping[int, nn.Module]) -> None:
        self.info, self.known = host.info, dict[tuple[int, tuple[int, ...]], list[int]]()
        self.features, self.weights = _look(host, features, distances)

    def kept(self, counts: Sequence[int]) -> list[list[int]]:
        """The patches of every block, (counts[l - 1] of them), in ascending order."""
        alive, blocks = list(range(self.info.patches)), []
        for layer, count in enumerate(counts, start=1):
            if 0 < count < len(alive):
                alive = sorted(set(alive) - set(self._gone(layer, tuple(alive), len(alive) - count)))
            blocks.append(alive if count else [])
        return blocks

    def _gone(self, layer: int, alive: tuple[int, ...], count: int) -> list[int]:
        """So many of the patches that come into a block, those that go first."""
        if len(self.known.get((layer, alive), [])) < count:
            z, weight = self.features[layer - 1][:, list(alive)], self.weights[layer - 1][:, list(alive)]
            most = count + self.info.patches // SPARE
            order = coverage_order(apart(z), weight, most)
            self.known[layer, alive] = [alive[place] for place in order]
        return self.known[layer, alive][:count]


@torch.no_grad()
def _look(host: Host, features: Features, distances: Mapping[int, nn.Module]) -> tuple[list[Tensor], list[Tensor]]:
    """What the distances make of the host's patches, features (images, N, c) and weights (images, N), by block."""
    info, found, weights = host.info, list[Tensor](), list[Tensor]()
    limit = max(1, min(MOST_IMAGES, PAIR_BYTES // (4 * info.patches**2)))
    for place in range(read_blocks(info)):
        every, seen = list[Tensor](), 0
        features.focus((place,))
        for (x,) in features.batches(place):
            every.append(distances[place + 1](x[: limit - seen, info.prefix_tokens :]))
            seen += len(every[-1])
            if seen == limit:
                break
        z = torch.cat(every)
        found.append(z[..., :-1])
        weights.append(weigh(z[..., -1], None))
    return found, weights


def coverage_order(distance: Tensor, weight: Tensor, most: int | None = None) -> list[int]:
    """The order in which patches go, all but the last one, or the first `most` of them.

    distance (B, t, t) between the patches of each image, squared or as one wants them to count; weight (B, t), what
    moving each costs. Sums run over all images: the order is the same for all of them.
    """
    apart = distance.clone()
    apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    patches = apart.shape[1]
    near, place = _two_nearest(apart)
    order: list[int] = []
    for _ in range(patches - 1 if most is None else min(most, patches - 1)):
        cost = (weight * near[..., 0]).sum(dim=0)  # of those that stay: what their own going would cost
        if order:
            gone = torch.tensor(order, device=apart.device)
            further = weight[:, gone] * (near[:, gone, 1] - near[:, gone, 0])
            cost = cost.scatter_add(0, place[:, gone, 0].flatten(), further.flatten())
            cost[gone] = torch.inf
        out = int(cost.argmin())
        order.append(out)
        apart[:, :, out] = torch.inf
        # Only those that had it for their nearest or second nearest have to look again.
        image, patch = (place == out).any(dim=2).nonzero(as_tuple=True)
        near[image, patch], place[image, patch] = _two_nearest(apart[image, patch])
    return order


def _two_nearest(apart: Tensor) -> tuple[Tensor, Tensor]:
    """The two least distances and whose they are: (…, t) → twice (…, 2); infinity where there is no second."""
    if apart.shape[-1] == 1:
        apart = torch.cat([apart, torch.full_like(apart, torch.inf)], dim=-1)
    found = apart.topk(2, dim=-1, largest=False)
    return found.values, found.indices
