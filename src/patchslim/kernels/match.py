"""Which patches say the same, and which of them joins which. Tensor functions: no loop over images, nothing that waits
for the device.

Shapes: B images, t patches that come in, n that stay, r = t - n that go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# What a patch weighs that the class token does not attend to, beside 1 for the average and before it is squared;
# docs/notebook/decisions.md.
LEARNT_FLOOR = 0.1
TINY = 1e-6


class Match(NamedTuple):
    """Which patches stay, which go, and which of those that stay each of them joins."""

    keep: Tensor  # (B, n), among the patches that come in
    gone: Tensor  # (B, r), likewise
    into: Tensor  # (B, r), places in `keep`
    first: int  # no patch joins a kept one before this place

    @property
    def to(self) -> Tensor:
        """Where every patch goes: (B, t) places among the n."""
        batch, n = self.keep.shape
        stay = torch.arange(n, device=self.keep.device).expand(batch, -1)
        places = self.keep.new_empty(batch, n + self.gone.shape[1])
        return places.scatter(1, self.keep, stay).scatter(1, self.gone, self.into)


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
    if not torch.is_autocast_enabled(device.type):
        return function(*args)
    with torch.autocast(device.type, enabled=False):
        return function(*(arg.float() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args))


def unit_keys(k: Tensor, prefix: int) -> Tensor:
    """What patches are compared by: the keys of all heads, at unit length. (B, H, p + t, d_h) → (B, t, H · d_h)."""
    return F.normalize(k[:, :, prefix:].transpose(1, 2).flatten(2), dim=-1)


def closeness(z: Tensor, other: Tensor) -> Tensor:
    """1 less squared distances, so that 1 less it is a distance, as with cosines: (B, m, c), (B, n, c) → (B, m, n)."""
    found: Tensor = unrounded(z.device, _closeness, z.float(), other.float())
    return found


def _closeness(z: Tensor, other: Tensor) -> Tensor:
    own, far = z.square().sum(dim=2), other.square().sum(dim=2)
    return 1 - (own[:, :, None] + far[:, None, :] - 2 * z @ other.transpose(1, 2))


def match(keys: Tensor, n: int, weight: Tensor | None = None) -> Match:
    """Pair patches by similarity: keys (B, t, c) at unit length, weight (B, t), else all weigh the same.

    Every second patch looks for its nearest among the others; the r pairs whose weight times distance is least become
    one: what a merge does to the network is about how much the patch matters times how far it is moved.
    """
    weight = None if weight is None else weight[:, ::2]
    return match_halves(keys[:, ::2] @ keys[:, 1::2].transpose(1, 2), keys.shape[1] - n, weight)


def match_halves(similarity: Tensor, r: int, weight: Tensor | None = None) -> Match:
    """The same from the similarity of even to odd patches, (B, ⌈t/2⌉, ⌊t/2⌋); weight (B, ⌈t/2⌉)."""
    batch, movers, targets = similarity.shape
    even = torch.arange(0, 2 * movers, 2, device=similarity.device).expand(batch, -1)
    odd = torch.arange(1, 2 * targets, 2, device=similarity.device).expand(batch, -1)
    return _cheapest(similarity, even, odd, r, weight)


def match_lighter(z: Tensor, n: int, weight: Tensor) -> Match:
    """Pair patches by distance, z (B, t, c), weight (B, t): the light join the heavy.

    The half of the patches that weigh least beside the one nearest to them may go, each to the nearest of the others.
    With halves that are not chosen, half of the light patches could not go, and half of the heavy ones could take none.
    """
    near = closeness(z, z)
    alone = near.masked_fill(torch.eye(z.shape[1], dtype=torch.bool, device=z.device), -torch.inf)
    order = (weight / take(weight, alone.argmax(dim=2))).argsort(dim=1)
    half = (z.shape[1] + 1) // 2
    movers, targets = order[:, :half], order[:, half:]
    between = take(near, movers).gather(2, targets[:, None, :].expand(-1, half, -1))
    return _cheapest(between, movers, targets, z.shape[1] - n, take(weight, movers))


def learnt_weight(log_weight: Tensor, importance: Tensor | None) -> Tensor:
    """What patches weigh by the logarithm that their own features give, (B, t), and by the class token's attention.

    Importance (B, t) is that attention, mean 1, or None where no class token is read. What it reads of a patch goes by
    attention, and an error by the square of that.
    """
    weight: Tensor = log_weight.float().exp()
    return weight if importance is None else weight * (importance.float() + LEARNT_FLOOR).square()


def _cheapest(similarity: Tensor, movers: Tensor, targets: Tensor, r: int, weight: Tensor | None) -> Match:
    """The r movers for which weight times distance is least join the target nearest to each.

    similarity (B, m, h) of movers (B, m) to targets (B, h), weight (B, m).
    """
    highest, nearest = similarity.max(dim=2)
    cost = (1 - highest).clamp_min(TINY)
    rank = (cost if weight is None else weight * cost).argsort(dim=1)
    gone, stay, first = rank[:, :r], rank[:, r:], movers.shape[1] - r
    return Match(
        torch.cat([take(movers, stay), targets], dim=1), take(movers, gone), take(nearest, gone) + first, first
    )
