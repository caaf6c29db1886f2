"""Which patches stay, which go, and which of those that stay each of them joins: by tensor functions, with no loop over
images and nothing that waits for the device, or by the kernels of `match_kernels`, which equal them.

Shapes: B images, t patches that come in, n that stay, r = t - n that go. Features z (B, t, c): patches are as far apart
as these. Weights (B, t): how much moving a patch costs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-6
DEAR = 1e38  # a cost beyond all others; that of what is no number, and of a patch that nobody is heavier than
MOST = 1e6  # what a patch weighs at most, and 1 / MOST at least


class Match(NamedTuple):
    """Where every patch goes. Those that stay keep their order."""

    to: Tensor  # (B, t): places among the n
    gone: Tensor  # (B, t) boolean
    n: int

    @property
    def keep(self) -> Tensor:
        """(B, n): the patches that stay."""
        place = torch.where(self.gone, self.n - 1 + self.gone.cumsum(dim=1), self.to)  # those that go come last
        patch = torch.arange(place.shape[1], device=place.device).expand_as(place)
        return torch.zeros_like(patch).scatter(1, place, patch)[:, : self.n]


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Each image's own rows: (B, n, …), (B, m) → (B, m, …)."""
    if rows.ndim == 2:
        return rows.gather(1, index)
    # Whole rows of one long table: a gather along the token axis would look up every number by itself.
    batch, n = rows.shape[:2]
    begin = torch.arange(0, batch * n, n, device=index.device)
    flat = (index + begin[:, None]).flatten()
    return rows.reshape(batch * n, *rows.shape[2:]).index_select(0, flat).reshape(*index.shape, *rows.shape[2:])


def unrounded(device: torch.device, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, in fp32 where autocast would have its products in half precision.

    Differences between near patches have no digits to spare, and an average should be the one of a network in fp32.
    """
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return function(*args)
    with torch.autocast(device.type, enabled=False):
        return function(*(arg.float() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args))


def unit_keys(k: Tensor, prefix: int) -> Tensor:
    """The keys of all heads, at unit length: (B, H, p + t, d_h) → (B, t, H · d_h)."""
    return F.normalize(k[:, :, prefix:].transpose(1, 2).flatten(2), dim=-1)


def weigh(log_weight: Tensor, size: Tensor | None) -> Tensor:
    """What patches weigh: what is learnt of one like them, as often as they stand for one. (B, t), (B or 1, t)."""
    weight = log_weight.float().exp()
    return (weight if size is None else weight * size).clamp(1 / MOST, MOST)


def apart(z: Tensor) -> Tensor:
    """Squared distances: (B, t, c) → (B, t, t)."""
    z = z.float()
    square = z.square().sum(dim=2)
    return torch.baddbmm(square[:, :, None] + square[:, None, :], z, z.transpose(1, 2), alpha=-2)


def match(z: Tensor, weight: Tensor, n: int) -> Match:
    """Whose going costs least goes, in two rounds; then each joins the nearest that stays.

    A patch would join the nearest that is heavier: that costs its weight times their squared distance. Half of those
    that go do so in the first round, and from then on their weight goes with the patch they were nearest to. So no
    patch goes cheaply that others rely on. Of two alike one stays, whatever they weigh.
    """
    found: Match = unrounded(z.device, _match, z, weight, n)
    return found


def _match(z: Tensor, weight: Tensor, n: int) -> Match:
    distance = apart(z)
    t = z.shape[1]
    later = torch.ones(t, t, dtype=torch.bool, device=z.device).tril(-1)  # of equal weights the first is the heavier
    mine, other = weight[:, :, None], weight[:, None, :]
    heavier = (other > mine) | ((other == mine) & later)
    far = distance.masked_fill(~heavier, torch.inf)
    nearest, parent = far.min(dim=2)
    gone = torch.zeros_like(weight, dtype=torch.bool)
    first = _cheapest(weight, nearest, gone, (t - n + 1) // 2)
    gone = gone.scatter(1, first, True)
    weight = weight.scatter_add(1, parent.gather(1, first), weight.gather(1, first))
    nearest = far.masked_fill(gone[:, None, :], torch.inf).amin(dim=2)
    gone = gone.scatter(1, _cheapest(weight, nearest, gone, (t - n) // 2), True)
    joined = distance.masked_fill(gone[:, None, :], torch.inf).argmin(dim=2)
    place = ((~gone).cumsum(dim=1) - 1).clamp_min(0)  # where nothing is a number, a patch may join one that went
    return Match(torch.where(gone, place.gather(1, joined), place), gone, n)


def _cheapest(weight: Tensor, nearest: Tensor, gone: Tensor, count: int) -> Tensor:
    """So many of those that are there, whose going costs least: (B, t), three times → (B, count)."""
    cost = weight * nearest.clamp_min(TINY)
    cost = torch.where(cost < DEAR, cost, DEAR)  # of a broken image too, so that as many stay as say that they do
    return cost.masked_fill(gone, torch.inf).topk(count, dim=1, largest=False).indices


def all_into_first(z: Tensor, n: int) -> Match:
    """The first n stay; each of the others joins the nearest of them. Slices, one product and one minimum."""
    found: Match = unrounded(z.device, _into_first, z, n)
    return found


def _into_first(z: Tensor, n: int) -> Match:
    z = z.float()
    stay, go = z[:, :n], z[:, n:]
    # What is left out of the squared distance is the same for all that it is compared with.
    joined = torch.baddbmm(stay.square().sum(dim=2)[:, None, :], go, stay.transpose(1, 2), alpha=-2).argmin(dim=2)
    patch = torch.arange(z.shape[1], device=z.device).expand(z.shape[0], -1)
    return Match(torch.cat([patch[:, :n], joined], dim=1), patch >= n, n)
