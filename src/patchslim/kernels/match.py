"""Which patches say the same, and which of them joins which: by tensor functions, with no loop over images and nothing
that waits for the device, or by the kernels of `match_kernels`, which equal them.

Shapes: B images, p prefix tokens, t patches that come in, n that stay, r = t - n that go. Keys k (B, H, p + t, d_h).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.kernels.attention import class_attention
from patchslim.kernels.available import kernels_for, operator, triton
from patchslim.kernels.match_kernels import EXACT_RANKS, OWN, Search, find_lighter, find_nearest_and_attend, held

# What a patch weighs that the class token does not attend to, beside 1 for the average and before it is squared;
# docs/notebook/decisions.md.
LEARNT_FLOOR = 0.1
TINY = 1e-6
MOST_PATCHES = 256  # whose pairs one program can hold


class Match(NamedTuple):
    """Which patches stay, which go, and which of those that stay each of them joins."""

    keep: Tensor  # (B, n), among the patches that come in
    gone: Tensor  # (B, r), likewise
    into: Tensor  # (B, r), places in `keep`
    first: int  # no patch joins a kept one before this place
    in_order: bool = False  # the first n stay and the others go: slices have them, and nothing is looked up

    @property
    def to(self) -> Tensor:
        """Where every patch goes: (B, t) places among the n."""
        batch, n = self.keep.shape
        stay = torch.arange(n, device=self.keep.device).expand(batch, -1)
        places = self.keep.new_empty(batch, n + self.gone.shape[1])
        return places.scatter(1, self.keep, stay).scatter(1, self.gone, self.into)


class Places(NamedTuple):
    """The same as kernels tell it: only where every patch goes."""

    to: Tensor  # (B, t), int32: places among the n
    n: int
    odd: bool = False  # of those that meet the odd patch stays, else the first

    @property
    def keep(self) -> Tensor:
        """(B, n), worked out once somebody asks."""
        batch, t = self.to.shape
        patch = torch.arange(t, device=self.to.device).expand(batch, -1)
        rank = patch - patch % 2 * t if self.odd else patch
        return patch.new_full((batch, self.n), t).scatter_reduce(1, self.to.long(), rank, "amin") % t


Found = Match | Places


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
    """What patches are compared by: the keys of all heads, at unit length. (B, H, p + t, d_h) → (B, t, H · d_h)."""
    return F.normalize(k[:, :, prefix:].transpose(1, 2).flatten(2), dim=-1)


def closeness(z: Tensor) -> Tensor:
    """1 less squared distances, so that 1 less it is a distance, as with cosines: (B, t, c) → (B, t, t)."""
    square = z.square().sum(dim=2)
    return 1 - (square[:, :, None] + square[:, None, :] - 2 * z @ z.transpose(1, 2))


def learnt_weight(log_weight: Tensor, importance: Tensor | None) -> Tensor:
    """What patches weigh by the logarithm that their own features give, (B, t), and by the class token's attention.

    Importance (B, t) is that attention, mean 1, or None where no class token is read. What it reads of a patch goes by
    attention, and an error by the square of that.
    """
    weight: Tensor = log_weight.float().exp()
    return weight if importance is None else weight * (importance.float() + LEARNT_FLOOR).square()


def match(keys: Tensor, n: int, weight: Tensor) -> Match:
    """Pair patches by similarity: keys (B, t, c) at unit length, weight (B, t).

    Every second patch looks for its nearest among the others; the r pairs whose weight times distance is least become
    one: what a merge does to the network is about how much the patch matters times how far it is moved.
    """
    batch, t, _ = keys.shape
    even = torch.arange(0, t, 2, device=keys.device).expand(batch, -1)
    odd = torch.arange(1, t, 2, device=keys.device).expand(batch, -1)
    return _cheapest(keys[:, ::2] @ keys[:, 1::2].transpose(1, 2), even, odd, t - n, weight[:, ::2])


def match_lighter(z: Tensor, n: int, weight: Tensor) -> Match:
    """Pair patches by distance, z (B, t, c), weight (B, t): the light join the heavy.

    The half of the patches that weigh least beside the one nearest to them may go, each to the nearest of the others.
    With halves that are not chosen, half of the light patches could not go, and half of the heavy ones could take none.
    """
    near: Tensor = unrounded(z.device, closeness, z.float())
    alone = near.masked_fill(torch.eye(z.shape[1], dtype=torch.bool, device=z.device), -torch.inf)
    order = (weight / take(weight, alone.argmax(dim=2))).argsort(dim=1)
    half = (z.shape[1] + 1) // 2
    movers, targets = order[:, :half], order[:, half:]
    between = take(near, movers).gather(2, targets[:, None, :].expand(-1, half, -1))
    return _cheapest(between, movers, targets, z.shape[1] - n, take(weight, movers))


def _cheapest(similarity: Tensor, movers: Tensor, targets: Tensor, r: int, weight: Tensor) -> Match:
    """The r movers for which weight times distance is least join the target nearest to each.

    similarity (B, m, h) of movers (B, m) to targets (B, h), weight (B, m).
    """
    highest, nearest = similarity.max(dim=2)
    rank = (weight * (1 - highest).clamp_min(TINY)).argsort(dim=1)
    gone, stay, first = rank[:, :r], rank[:, r:], movers.shape[1] - r
    kept = torch.cat([take(movers, stay), targets], dim=1)
    return Match(kept, take(movers, gone), take(nearest, gone) + first, first)


def _nearest(k: Tensor, n: int, prefix: int) -> Tensor:
    """Which of the first n patches each of the others resembles most: (B, r)."""
    keys = unit_keys(k, prefix)
    return (keys[:, n:] @ keys[:, :n].transpose(1, 2)).argmax(dim=2)


def _places(z: Tensor, weight: Tensor, n: int) -> Tensor:
    """Room for the result."""
    return weight.new_empty(weight.shape, dtype=torch.int32)


@operator("patchslim::pair", _places)
def pair(z: Tensor, weight: Tensor, n: int) -> Tensor:
    """`match` in two kernels, of keys (B, H, t, d_h) and weight (B, t) in fp32: (B, t) places among the n."""
    place, search = _places(z, weight, n), Search(z, z.shape[3])
    search.find_nearest(z)
    search.rank(weight, None, place, n)
    return place


def _lighter_places(z: Tensor, n: int, q: Tensor | None, *_: Any) -> list[Tensor]:
    """Room for the results."""
    place = z.new_empty(z.shape[:2], dtype=torch.int32)
    return [place] if q is None else [place, torch.empty_like(place, dtype=torch.float32)]


@operator("patchslim::pair_lighter", _lighter_places)
def pair_lighter(
    z: Tensor, n: int, q: Tensor | None, k: Tensor | None, size: Tensor | None, scale: float
) -> list[Tensor]:
    """`match_lighter` in three kernels, z (B, t, c + 1): the last channel is the logarithm of what a patch weighs.

    With q (B, H, 1, d_h) it weighs by `learnt_weight`, and importance comes along: the first token's attention,
    averaged over heads, mean 1. k (B, H, p + t, d_h), size (B or 1, p + t) or None → once or twice (B, t).
    """
    batch, t, width = z.shape
    rows, attended, heads, tokens = z[:, None], None, 1, t
    near, own = Search(rows, width - 1, any_two=True), Search(rows, width - 1)
    found = place, *importance = _lighter_places(z, n, q)
    order, weight = torch.empty_like(place), torch.empty_like(place, dtype=torch.float32)
    if q is None or k is None:
        near.find_nearest(rows)
    else:
        _, heads, tokens, key_width = k.shape
        size = z.new_ones(1, tokens, dtype=torch.float32) if size is None else size
        attended = z.new_empty(batch, heads, tokens, dtype=torch.float32)
        find_nearest_and_attend[(batch, heads + near.tiles)](
            q, k, z, size, attended, near.similarity, near.nearest,
            q.stride(0), q.stride(1), *k.stride()[:3], z.stride(0), z.stride(1), size.stride(0) if len(size) > 1 else 0,
            near.stride, heads, near.movers, near.targets, near.parts, tokens, scale,
            KEY_WIDTH=key_width, KEY_CHANNELS=held(key_width), KEYS=triton.next_power_of_2(tokens),
            **near.tile, num_warps=max(4, near.warps),
        )  # fmt: skip
    find_lighter[(batch, own.tiles)](
        z, near.similarity, near.nearest, attended, order, *(importance or (None,)), weight, own.similarity,
        own.nearest, z.stride(0), z.stride(1), near.stride, heads * tokens, own.stride,
        t, heads, tokens, tokens - t, near.parts, own.movers, own.targets, own.parts, LEARNT_FLOOR,
        **own.tile, PATCHES=triton.next_power_of_2(t), OWN=OWN, CLASSED=q is not None,
        **EXACT_RANKS | {"num_warps": max(4, own.warps)},
    )  # fmt: skip
    own.rank(weight, order, place, n)
    return found


def fits_kernels(k: Tensor) -> bool:
    """Whether kernels can do it: what patches are compared by, k (B, h, t, c)."""
    return kernels_for(k) and k.shape[2] <= MOST_PATCHES


def pairs_by_keys(k: Tensor, n: int, prefix: int, weight: Tensor) -> Found:
    """Every second patch pairs with its nearest by keys; pairs of least weight (B, t) times distance become one."""
    if fits_kernels(k[:, :, prefix:]):
        return Places(pair(k[:, :, prefix:], weight.float(), n), n, odd=True)
    return match(unit_keys(k, prefix), n, weight)


def pairs_by_distance(
    z: Tensor, n: int, k: Tensor, size: Tensor | None, query: tuple[Tensor, float] | None
) -> tuple[Found, Tensor | None]:
    """The light join the heavy, by a learnt distance, until `n` are left; and how much each patch counts, (B, t).

    z (B, t, c + 1): patches are as far apart as their first c channels, and the last is the logarithm of their weight.
    Where a class token is read they count by its attention, mean 1: its `query` (B, H, 1, d_h), and what products with
    keys are scaled by; size (B or 1, p + t).
    """
    t, prefix = z.shape[1], k.shape[2] - z.shape[1]
    q, scale = query or (None, 0.0)
    if fits_kernels(z[:, None] if q is None else k[:, :, prefix:]):
        place, *importance = pair_lighter(z, n, q, k, size, scale)
        return Places(place, n), importance[0] if importance else None
    attention = None if q is None else class_attention(q, k, size, scale)[:, prefix:] * t
    return match_lighter(z[..., :-1], n, learnt_weight(z[..., -1], attention)), attention


def all_into_first(k: Tensor, n: int, prefix: int) -> Found:
    """All patches after the first `n` join, each, the one of these that its keys resemble most.

    Slices and products only: nothing is sorted or looked up.
    """
    nearest: Tensor = unrounded(k.device, _nearest, k, n, prefix)
    patch = torch.arange(k.shape[2] - prefix, device=k.device).expand(k.shape[0], -1)
    if fits_kernels(k[:, :, prefix:]):
        return Places(torch.cat([patch[:, :n], nearest], dim=1).int(), n)
    return Match(patch[:, :n], patch[:, n:], nearest, 0, in_order=True)
