"""Coverage: which patches should stay so that every other one finds a patch like itself among them.

Facility location, from the end: of the patches that are left the one goes whose loss costs least, and so on down to
one. What going costs is what it adds to Σ_i w_i min_j d_ij² over the patches i that are gone, j those that stay: its
own distance to the nearest, and what those lose that were nearest to it and have to go on to their second nearest.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
