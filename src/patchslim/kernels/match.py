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

from patchslim.kernels.available import DTYPES, MOST_TOKENS, in_inference
from patchslim.kernels.match_kernels import choose

TINY = 1e-6
MOST = 1e6  # what a patch weighs at most, and 1 / MOST at least


class Match(NamedTuple):
    """Which patch each one joins: itself, if it stays. Those that stay keep their order."""

    root: Tensor  # (B, t)
    n: int
    places: Tensor | None = None  # (B, t): where every patch goes, where that came for nothing

    @property
    def gone(self) -> Tensor:
        """(B, t) boolean."""
        return self.root != torch.arange(self.root.shape[1], device=self.root.device)

    @property
    def to(self) -> Tensor:
        """Where every patch goes: (B, t) places among the n."""
        if self.places is not None:
            return self.places
        place = (~self.gone).cumsum(dim=1) - 1
        return place.clamp_min(0).gather(1, self.root.long())  # where nothing is a number, one may join one that went

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
    t = weight.shape[1]
    # The heaviest first, so that each looks at those before it. Of equal weights the first is the heavier.
    heavy, order = weight.sort(dim=1, descending=True, stable=True)
    rows = _rows(z.float(), order)
    square = rows.square().sum(dim=2)
    far = _but_own_square(rows, rows, square)
    far += torch.full((t, t), torch.inf, device=z.device).triu()
    first = _cheapest(heavy, far.amin(dim=2) + square, (t - n + 1) // 2)
    none = torch.zeros_like(square)
    away = none.scatter(1, first, torch.inf)
    parent = _rows(far, first).argmin(dim=2)
    heavy = heavy.scatter_add(1, parent, heavy.gather(1, first))
    far += away[:, None, :]
    nearest = far.amin(dim=2) + square + away
    away = away.scatter(1, _cheapest(heavy, nearest, (t - n) // 2), torch.inf)
    away = none.scatter(1, order, away)  # as they came
    split = away.sort(dim=1, stable=True).indices  # those that stay, then those that go
    into = _into_first(_rows(z, split), n)
    return Match(split.scatter(1, split, split.gather(1, into)), n, split.scatter(1, split, into))


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Short rows by one operation, where `take` is for long ones: (B, t, c), (B, m) → (B, m, c)."""
    return table.gather(1, index[..., None].expand(-1, -1, table.shape[2]))


def _cheapest(weight: Tensor, nearest: Tensor, count: int) -> Tensor:
    """So many patches whose going costs least: (B, t), twice → (B, count). One that is infinitely far does not go."""
    return (weight * nearest.clamp_min(TINY)).topk(count, dim=1, largest=False).indices


def _but_own_square(z: Tensor, other: Tensor, square: Tensor) -> Tensor:
    """Squared distances, less what is the same for all that a patch is compared with, its own square:
    (B, r, c), (B, n, c) and the others' squares (B, n) → (B, r, n)."""
    return torch.baddbmm(square[:, None, :], z, other.transpose(1, 2), alpha=-2)


def all_into_first(z: Tensor, n: int) -> Match:
    """The first n stay; each of the others joins the nearest of them. Slices, one product and one minimum."""
    root = unrounded(z.device, _into_first, z, n)
    return Match(root, n, root)


def _into_first(z: Tensor, n: int) -> Tensor:
    """Which of the first n each joins: (B, t)."""
    z = z.float()
    stay, go = z[:, :n], z[:, n:]
    joined = _but_own_square(go, stay, stay.square().sum(dim=2)).argmin(dim=2)
    return torch.cat([torch.arange(n, device=z.device).expand(z.shape[0], -1), joined], dim=1)


@torch.no_grad()  # who goes is a choice, and has no derivative
def chosen(z: Tensor, size: Tensor | None, n: int, first: bool = False) -> tuple[Match, Tensor]:
    """Who stays, and what patches weigh (B, t), of z (B, t, c + 1), whose last channel is the logarithm of that for one
    patch, and sizes (B or 1, t). `first`: the first n stay."""
    if kernels_choose(z):
        root, weight = choose(z, size, n, first)
        return Match(root, n), weight
    # Not as two slices: OpenVINO drops a slice before a gather, and then takes the shapes for wrong.
    features, log_weight = z.split((z.shape[2] - 1, 1), dim=2)
    weight = weigh(log_weight[..., 0], size)
    return all_into_first(features, n) if first else match(features, weight, n), weight


def kernels_choose(z: Tensor) -> bool:
    """Whether kernels can choose among patches (B, t, c)."""
    return in_inference(z) and z.dtype in DTYPES and z.shape[1] <= MOST_TOKENS
