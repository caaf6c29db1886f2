"""Coverage: which patches should stay so that every other one finds a patch like itself among them.

Facility location, from the end: of the patches that are left the one goes whose loss costs least, and so on down to
one. What going costs is what it adds to Σ_i w_i min_j d_ij² over the patches i that are gone, j those that stay: its
own distance to the nearest, and what those lose that were nearest to it and have to go on to their second nearest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from patchslim.evidence.features import Features
from patchslim.evidence.taylor import read_blocks
from patchslim.hosts import Host
from patchslim.kernels.match import unit_keys

MOST_IMAGES = 128  # more say the same
KEY_BYTES, PAIR_BYTES = 2**30, 2**28  # for keys of all blocks, and for the distances in one
SPARE = 10  # a search soon asks for a few more to go: this part of all patches is put in order at once
FLOOR = 1.0  # what a patch weighs that the class token does not attend to; the average one weighs 1 (docs/notebook)


class CoverageSets:
    """Which patches stay in each block, whatever the counts: those that cover the others best in the host's keys."""

    def __init__(self, host: Host, features: Features) -> None:
        self.info, self.known = host.info, dict[tuple[int, tuple[int, ...]], list[int]]()
        self.keys, self.weights = _look(host, features)

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
            keys, weight = self.keys[layer - 1][:, list(alive)], self.weights[layer - 1][:, list(alive)]
            most = count + self.info.patches // SPARE
            order = coverage_order((1 - keys @ keys.transpose(1, 2)).square(), weight, most)
            self.known[layer, alive] = [alive[place] for place in order]
        return self.known[layer, alive][:count]


@torch.no_grad()
def _look(host: Host, features: Features) -> tuple[list[Tensor], list[Tensor]]:
    """Keys of the host's patches at unit length (images, N, c), and what they weigh (images, N), by block."""
    info, prefix, keys, weights = host.info, host.info.prefix_tokens, list[Tensor](), list[Tensor]()
    blocks = range(read_blocks(info))
    channels = sum(info.blocks[place].attention_width for place in blocks)
    room = min(KEY_BYTES // (4 * info.patches * max(1, channels)), PAIR_BYTES // (4 * info.patches**2))
    limit = max(1, min(MOST_IMAGES, room))
    for place in blocks:
        block, own, attended, seen = host.blocks[place], list[Tensor](), list[Tensor](), 0
        features.focus((place,))
        for (x,) in features.batches(place):
            incoming = host.math.read(block, x[: limit - seen])
            own.append(unit_keys(incoming.k.float(), prefix))
            weight = torch.full(own[-1].shape[:2], 1 + FLOOR, device=x.device)
            if info.reads_class:
                attention = host.math.class_attention(block, incoming, None)[:, prefix:]
                weight = attention.float() * info.patches + FLOOR
            attended.append(weight)
            seen += len(weight)
            if seen == limit:
                break
        keys.append(torch.cat(own))
        weights.append(torch.cat(attended))
    return keys, weights


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
