"""Matching patches that say the same, and merging them. Pure tensor functions: no loop over images, nothing that waits
for the device, and sums as products with a 0/1 matrix instead of scattered additions.

Shapes: B images, t patches that come in, n that stay, r = t - n that go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.hosts.base import ClassQuery
from patchslim.hosts.fast import KERNELS, kernels_for
from patchslim.slim.tokens import Tokens, pick, take

if KERNELS:
    from patchslim.slim import merge_kernels, pair_kernels

# What a patch weighs that the class token does not attend to, beside 1 for the average, by keys and before it is
# squared; docs/decisions.md.
FLOOR, LEARNT_FLOOR = 0.3, 0.1
TINY = 1e-6
MOST_PATCHES = 256  # whose pairs one program can hold


class Match(NamedTuple):
    """Which patches stay, which go, and which of those that stay each of them joins."""

    keep: Tensor  # (B, n), among the patches that come in
    gone: Tensor  # (B, r), likewise
    into: Tensor  # (B, r), places in `keep`
    first: int  # no patch joins a kept one before this place


def unit_keys(k: Tensor, prefix: int) -> Tensor:
    """What patches are compared by: the keys of all heads, at unit length. (B, H, p + t, d_h) → (B, t, H · d_h)."""
    return F.normalize(k[:, :, prefix:].transpose(1, 2).flatten(2), dim=-1)


def unrounded(device: torch.device, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function; where autocast would have its products in half precision, in fp32: differences between near
    patches have no digits to spare, and an average should be the one that a network in fp32 has."""
    if not torch.is_autocast_enabled(device.type):
        return function(*args)
    with torch.autocast(device.type, enabled=False):
        return function(*(arg.float() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args))


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
    batch, movers, hosts = similarity.shape
    even = torch.arange(0, 2 * movers, 2, device=similarity.device).expand(batch, -1)
    odd = torch.arange(1, 2 * hosts, 2, device=similarity.device).expand(batch, -1)
    return _joined(similarity, even, odd, r, weight)


def match_lighter(z: Tensor, n: int, weight: Tensor) -> Match:
    """Pair patches by distance, z (B, t, c), weight (B, t): the light join the heavy.

    The half of the patches that weigh least beside the one nearest to them may go, each to the nearest of the others.
    With halves that are not chosen half of the light patches could not go, and half of the heavy ones are no hosts.
    """
    near = closeness(z, z)
    alone = near.masked_fill(torch.eye(z.shape[1], dtype=torch.bool, device=z.device), -torch.inf)
    order = (weight / take(weight, alone.argmax(dim=2))).argsort(dim=1)
    half = (z.shape[1] + 1) // 2
    movers, hosts = order[:, :half], order[:, half:]
    between = take(near, movers).gather(2, hosts[:, None, :].expand(-1, half, -1))
    return _joined(between, movers, hosts, z.shape[1] - n, take(weight, movers))


def weight_of(importance: Tensor | None) -> Tensor | None:
    """What patches weigh by the class token's attention, mean 1; None where none is read."""
    return None if importance is None else importance + FLOOR


def learnt_weight(told: Tensor, importance: Tensor | None) -> Tensor:
    """What patches weigh by the logarithm that their own features tell, (B, t), and, where a class token is read, by
    its attention: what it reads of a patch goes by attention, and an error by the square of that."""
    weight: Tensor = told.float().exp()
    return weight if importance is None else weight * (importance.float() + LEARNT_FLOOR).square()


def _joined(similarity: Tensor, movers: Tensor, hosts: Tensor, r: int, weight: Tensor | None) -> Match:
    """The r movers for which weight times distance is least join the host nearest to each: similarity (B, m, h) of
    movers (B, m) to hosts (B, h), weight (B, m)."""
    alike, nearest = similarity.max(dim=2)
    cost = (1 - alike).clamp_min(TINY)
    rank = (cost if weight is None else weight * cost).argsort(dim=1)
    gone, stay, first = rank[:, :r], rank[:, r:], movers.shape[1] - r
    return Match(torch.cat([take(movers, stay), hosts], dim=1), take(movers, gone), take(nearest, gone) + first, first)


def join(tokens: Tokens, k: Tensor, n: int, prefix: int, importance: Tensor | None, weight: Tensor | None) -> Tokens:
    """Pair patches by keys k (B, H, p + t, d_h) and merge until `n` are left. weight (B, t) as in `match`; importance
    (B, t) is how much each counts in an average."""
    if not joins_fast(tokens, k[:, :, prefix:]):
        return merge(tokens, match(unit_keys(k, prefix), n, weight), prefix, importance)
    if weight is None:
        weight = torch.ones(k.shape[0], k.shape[2] - prefix, device=k.device)
    place = pair_kernels.pair(k[:, :, prefix:], weight.float(), n)
    return _merge_fast(tokens, place, n, prefix, importance)


def join_first(tokens: Tokens, k: Tensor, n: int, prefix: int, importance: Tensor | None) -> Tokens:
    """Of patches in a plan's own order, all after the first `n` join, each, the one of these that its keys are most
    like: k (B, H, p + t, d_h), importance (B, t) as in `join`. Slices and products only: nothing is sorted or looked
    up."""
    nearest = unrounded(k.device, _nearest, k, n, prefix)
    if joins_fast(tokens, k[:, :, prefix:]):
        stay = torch.arange(n, device=k.device).expand(len(nearest), -1)
        return _merge_fast(tokens, torch.cat([stay, nearest], dim=1).int(), n, prefix, importance)
    merged: Tokens = unrounded(tokens.x.device, _merge_first, tokens, nearest, n, prefix, importance)
    return merged


def _nearest(k: Tensor, n: int, prefix: int) -> Tensor:
    """Which of the first n patches each of the others is most like: (B, r)."""
    keys = unit_keys(k, prefix)
    return (keys[:, n:] @ keys[:, :n].transpose(1, 2)).argmax(dim=2)


def _merge_first(tokens: Tokens, nearest: Tensor, n: int, prefix: int, weight: Tensor | None) -> Tokens:
    x, patches = tokens.x, tokens.x[:, prefix:]
    size, weight = _sizes_and_weights(tokens, prefix, weight)
    joins = torch.arange(n, device=x.device)[:, None] == nearest[:, None, :]  # (B, n, r)
    every = _terms(patches, weight, size[:, prefix:])
    mean, grown = _averages(every[:, :n] + joins.to(x.dtype) @ every[:, n:])
    source = tokens.source
    if source is not None:
        source = source[:, :n] | (joins.float() @ source[:, n:].float() > 0)
    return Tokens(
        torch.cat([x[:, :prefix], mean.to(x.dtype)], dim=1),
        torch.cat([size[:, :prefix], grown], dim=1),
        None if tokens.place is None else tokens.place[:, :n],
        source,
    )


def join_lighter(tokens: Tokens, z: Tensor, n: int, prefix: int, importance: Tensor | None) -> Tokens:
    """Pair patches by distance, z (B, t, c + 1) as `chooser.make_distance` has it, and merge until `n` are left."""
    if importance is None and joins_fast(tokens, z[:, None]):
        return _merge_fast(tokens, pair_kernels.pair_lighter(z, n), n, prefix, None)
    return merge(tokens, match_lighter(z[..., :-1], n, learnt_weight(z[..., -1], importance)), prefix, importance)


def joins_fast(tokens: Tokens, k: Tensor) -> bool:
    """Whether kernels can do it: what patches are compared by, k (B, h, t, c)."""
    tracked = tokens.place is not None or tokens.source is not None
    return kernels_for(k) and not tracked and k.shape[2] <= MOST_PATCHES


def join_by_class(
    tokens: Tokens, k: Tensor, z: Tensor | None, n: int, prefix: int, query: ClassQuery, norm: Any
) -> Tokens:
    """`join`, or `join_lighter` where z is given, in three or four kernels, importance being the class token's
    attention: tokens after LN1 come with it."""
    size = _sizes(tokens)
    if z is None:
        place, importance = pair_kernels.pair_by_class(query.q, k, size, query.scale, prefix, n, FLOOR)
    else:
        place, importance = pair_kernels.pair_lighter_by_class(query.q, k, z, size, query.scale, n, LEARNT_FLOOR)
    if not plain_norm(norm, tokens.x):
        return Tokens(*merge_kernels.merge_rows(tokens.x, size, importance, place, n))
    x, grown, normed = merge_kernels.merge_normed(
        tokens.x, size, importance, place, n, norm.weight, norm.bias, norm.eps
    )
    return Tokens(x, grown, normed=normed)


def plain_norm(norm: Any, x: Tensor) -> bool:
    """Whether a module is a LayerNorm over the last axis of x with gain and bias, all of one precision."""
    if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
        return False
    return norm.weight.shape == x.shape[-1:] and x.dtype == norm.weight.dtype == norm.bias.dtype


def _sizes(tokens: Tokens) -> Tensor:
    """(B or 1, p + t)."""
    return torch.ones(1, tokens.x.shape[1], device=tokens.x.device) if tokens.size is None else tokens.size


def _merge_fast(tokens: Tokens, place: Tensor, n: int, prefix: int, importance: Tensor | None) -> Tokens:
    """Average what goes to one place (B, t), in a kernel."""
    size = _sizes(tokens)
    share = size[:, prefix:] if importance is None else importance
    return Tokens(*merge_kernels.merge_rows(tokens.x, size, share, place, n))


def merge(tokens: Tokens, found: Match, prefix: int, weight: Tensor | None = None) -> Tokens:
    """Average what goes into what it joins; sizes add up. weight (B, t), else the size, says how much each counts.

    The average of vectors is shorter than they are, and LayerNorm would not see that; so it gets their average length.
    """
    merged: Tokens = unrounded(tokens.x.device, _merge, tokens, found, prefix, weight)
    return merged


def _merge(tokens: Tokens, found: Match, prefix: int, weight: Tensor | None) -> Tokens:
    x = tokens.x
    size, weight = _sizes_and_weights(tokens, prefix, weight)
    apart = pick(Tokens(x, size), found.keep[:, : found.first], prefix)  # the prefix, and those that nothing joins
    hosts = found.keep[:, found.first :]
    places = torch.arange(found.first, found.keep.shape[1], device=x.device)
    joins = (places[:, None] == found.into[:, None, :]).to(x.dtype)  # (B, n - first, r)
    given = _summands(x, size, weight, found.gone, prefix)
    mean, grown = _averages(_summands(x, size, weight, hosts, prefix) + joins @ given)
    assert apart.size is not None
    return Tokens(
        torch.cat([apart.x, mean.to(x.dtype)], dim=1),
        torch.cat([apart.size, grown], dim=1),
        None if tokens.place is None else take(tokens.place, found.keep),
        None if tokens.source is None else _join_sources(tokens.source, found),
    )


def _sizes_and_weights(tokens: Tokens, prefix: int, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B, p + t), and how much each patch counts in an average, (B, t)."""
    x = tokens.x
    size = torch.ones_like(x[..., 0]) if tokens.size is None else tokens.size.expand(x.shape[0], -1)
    return size, size[:, prefix:] if weight is None else weight.to(size).clamp_min(TINY)


def _summands(x: Tensor, size: Tensor, weight: Tensor, index: Tensor, prefix: int) -> Tensor:
    """What adds up when patches join, of some of them, (B, m) → (B, m, d + 3)."""
    return _terms(take(x, index + prefix), take(weight, index), take(size, index + prefix))


def _terms(x: Tensor, weight: Tensor, size: Tensor) -> Tensor:
    """[w x, w, s, w |x|]: x (B, m, d), weight and size (B, m) → (B, m, d + 3)."""
    w = weight[..., None]
    return torch.cat([x * w, w, size[..., None], x.norm(dim=2, keepdim=True) * w], dim=2)


def _averages(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Means at their members' mean length, and sizes, of sums of such terms: (B, m, d + 3) → (B, m, d), (B, m)."""
    total, length = sums[..., -3:-2], sums[..., -1:]
    mean = sums[..., :-3] / total
    return mean * (length / total / mean.norm(dim=2, keepdim=True).clamp_min(TINY)), sums[..., -2]


def _join_sources(source: Tensor, found: Match) -> Tensor:
    """(B, t, N) → (B, n, N)."""
    kept = take(source, found.keep)
    joins = torch.arange(kept.shape[1], device=kept.device)[:, None] == found.into[:, None, :]
    joined = joins.float() @ take(source, found.gone).float()
    return kept | (joined > 0)
