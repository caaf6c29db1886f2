"""Merging patches. Sums are products with a 0/1 matrix instead of scattered additions, and averages go by weights.

Shapes: B images, p prefix tokens, t patches that come in, n that stay, r = t - n that go. Tokens x (B, p + t, d), sizes
(B or 1, p + t) or None where each stands for itself, keys k (B, H, p + t, d_h). Importance (B, t) is how much each
patch counts in an average, its size where there is none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchslim.kernels.attention import class_attention
from patchslim.kernels.available import KERNELS, kernels_for
from patchslim.kernels.match import (
    LEARNT_FLOOR,
    TINY,
    Match,
    learnt_weight,
    match,
    match_lighter,
    take,
    unit_keys,
    unrounded,
)

if KERNELS:
    from patchslim.kernels import merge_triton, pairs_triton

MOST_PATCHES = 256  # whose pairs one program can hold
Sized = tuple[Tensor, Tensor | None]  # tokens and sizes; `unrounded` leaves their precision as it is


class IntoFirst(NamedTuple):
    """The first n patches stay where they are; which of these each of the others joins."""

    into: Tensor  # (B, r)
    n: int

    @property
    def keep(self) -> Tensor:
        """(B, n)."""
        return torch.arange(self.n, device=self.into.device).expand(self.into.shape[0], -1)

    @property
    def to(self) -> Tensor:
        """(B, t)."""
        return torch.cat([self.keep, self.into], dim=1)


class EvenIntoOdd(NamedTuple):
    """Every even patch may join an odd one, as a kernel tells it."""

    place: Tensor  # (B, t), int32: where every patch goes
    n: int

    @property
    def keep(self) -> Tensor:
        """(B, n): the odd patch of every place, the even one where it is alone."""
        patch = torch.arange(self.place.shape[1], device=self.place.device)
        odd_last = (patch + patch % 2 * len(patch)).expand_as(self.place)
        last = odd_last.new_zeros(self.place.shape[0], self.n).scatter_reduce(1, self.to, odd_last, "amax")
        return torch.where(last < len(patch), last, last - len(patch))

    @property
    def to(self) -> Tensor:
        """(B, t)."""
        return self.place.long()


class LightIntoHeavy(NamedTuple):
    """Light patches join heavy ones, as a kernel tells it; which of those that meet is the heavy one is not told."""

    place: Tensor  # (B, t), int32
    n: int

    @property
    def keep(self) -> Tensor:
        """(B, n): the first of those that meet."""
        patch = torch.arange(self.place.shape[1], device=self.place.device).expand_as(self.place)
        return patch.new_full((patch.shape[0], self.n), patch.shape[1]).scatter_reduce(1, self.to, patch, "amin")

    @property
    def to(self) -> Tensor:
        """(B, t)."""
        return self.place.long()


Found = Match | IntoFirst | EvenIntoOdd | LightIntoHeavy


class Merged(NamedTuple):
    """Tokens after a merge, the prefix as it was."""

    x: Tensor  # (B, p + n, d)
    size: Tensor  # (B, p + n): input patches that each stands for
    normed: Tensor | None  # (B, p + n, d): LN1 of x, where that came for nothing
    found: Found  # what `keep` and `to` are read off, once somebody asks

    @property
    def keep(self) -> Tensor:
        """The patch at whose place each of the n sits: (B, n)."""
        return self.found.keep

    @property
    def to(self) -> Tensor:
        """Where every patch that came in went: (B, t) places among the n."""
        return self.found.to


def merge_pairs(
    x: Tensor, size: Tensor | None, k: Tensor, n: int, prefix: int, importance: Tensor | None, weight: Tensor | None
) -> Merged:
    """Every second patch pairs with its nearest by keys; pairs of least weight (B, t) times distance become one."""
    if not fits_kernels(k[:, :, prefix:]):
        return merge(x, size, match(unit_keys(k, prefix), n, weight), prefix, importance)
    if weight is None:
        weight = torch.ones(k.shape[0], k.shape[2] - prefix, device=k.device)
    place = pairs_triton.pair(k[:, :, prefix:], weight.float(), n)
    return _merge_places(x, size, EvenIntoOdd(place, n), place, n, prefix, importance)


def merge_into_first(
    x: Tensor, size: Tensor | None, k: Tensor, n: int, prefix: int, importance: Tensor | None
) -> Merged:
    """All patches after the first `n` join, each, the one of these that its keys resemble most.

    Slices and products only: nothing is sorted or looked up.
    """
    nearest: Tensor = unrounded(k.device, _nearest, k, n, prefix)
    found = IntoFirst(nearest, n)
    if fits_kernels(k[:, :, prefix:]):
        return _merge_places(x, size, found, found.to.int(), n, prefix, importance)
    rows, grown = unrounded(x.device, _merge_first, (x, size), nearest, n, prefix, importance)
    return Merged(rows, grown, None, found)


def merge_lighter(x: Tensor, size: Tensor | None, z: Tensor, n: int, prefix: int, importance: Tensor | None) -> Merged:
    """The light join the heavy, by a learnt distance, until `n` are left.

    z (B, t, c + 1): patches are as far apart as their first c channels, and the last is the logarithm of their weight.
    """
    if importance is None and fits_kernels(z[:, None]):
        place = pairs_triton.pair_lighter(z, n)
        return _merge_places(x, size, LightIntoHeavy(place, n), place, n, prefix, None)
    return merge(x, size, match_lighter(z[..., :-1], n, learnt_weight(z[..., -1], importance)), prefix, importance)


def merge_lighter_by_class(
    x: Tensor,
    size: Tensor | None,
    k: Tensor,
    z: Tensor,
    n: int,
    prefix: int,
    q: Tensor,
    scale: float,
    norm: Any,
) -> Merged:
    """The same where importance is the class token's attention, mean 1: q (B, H, 1, d_h), products scaled by `scale`.

    In kernels the merged tokens come with what `norm`, the block's LN1, makes of them.
    """
    if not fits_kernels(k[:, :, prefix:]):
        attention = class_attention(q, k, size, scale)[:, prefix:]
        return merge_lighter(x, size, z, n, prefix, attention * attention.shape[1])
    size = _sizes(x, size)
    place, importance = pairs_triton.pair_lighter_by_class(q, k, z, size, scale, n, LEARNT_FLOOR)
    if not plain_norm(norm, x):
        return _merge_places(x, size, LightIntoHeavy(place, n), place, n, prefix, importance)
    weights = norm.weight, norm.bias, norm.eps
    return Merged(*merge_triton.merge_normed(x, size, importance, place, n, *weights), LightIntoHeavy(place, n))


def fits_kernels(k: Tensor) -> bool:
    """Whether kernels can do it: what patches are compared by, k (B, h, t, c)."""
    return kernels_for(k) and k.shape[2] <= MOST_PATCHES


def plain_norm(norm: Any, x: Tensor) -> bool:
    """Whether a module is a LayerNorm over the last axis of x with gain and bias, all of one precision."""
    if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
        return False
    return norm.weight.shape == x.shape[-1:] and x.dtype == norm.weight.dtype == norm.bias.dtype


def merge(x: Tensor, size: Tensor | None, found: Match, prefix: int, weight: Tensor | None = None) -> Merged:
    """Average what goes into what it joins; sizes add up. weight (B, t), else the size, says how much each counts.

    The average of vectors is shorter than they are, and LayerNorm would not see that; so it gets their average length.
    """
    rows, grown = unrounded(x.device, _merge, (x, size), found, prefix, weight)
    return Merged(rows, grown, None, found)


def _nearest(k: Tensor, n: int, prefix: int) -> Tensor:
    """Which of the first n patches each of the others resembles most: (B, r)."""
    keys = unit_keys(k, prefix)
    return (keys[:, n:] @ keys[:, :n].transpose(1, 2)).argmax(dim=2)


def _merge_first(tokens: Sized, nearest: Tensor, n: int, prefix: int, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens and sizes: (B, p + n, d), (B, p + n)."""
    x, _ = tokens
    size, weight = _sizes_and_weights(*tokens, prefix, weight)
    joins = torch.arange(n, device=x.device)[:, None] == nearest[:, None, :]  # (B, n, r)
    every = _terms(x[:, prefix:], weight, size[:, prefix:])
    mean, grown = _averages(every[:, :n] + joins.to(x.dtype) @ every[:, n:])
    return torch.cat([x[:, :prefix], mean.to(x.dtype)], dim=1), torch.cat([size[:, :prefix], grown], dim=1)


def _merge_places(
    x: Tensor, size: Tensor | None, found: Found, place: Tensor, n: int, prefix: int, importance: Tensor | None
) -> Merged:
    """Average what goes to one place (B, t), in a kernel."""
    size = _sizes(x, size)
    share = size[:, prefix:] if importance is None else importance
    rows, grown = merge_triton.merge_rows(x, size, share, place, n)
    return Merged(rows, grown, None, found)


def _sizes(x: Tensor, size: Tensor | None) -> Tensor:
    """(B or 1, p + t)."""
    return torch.ones(1, x.shape[1], device=x.device) if size is None else size


def _merge(tokens: Sized, found: Match, prefix: int, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens and sizes: (B, p + n, d), (B, p + n)."""
    x, _ = tokens
    size, weight = _sizes_and_weights(*tokens, prefix, weight)
    head = torch.arange(prefix, device=x.device).expand(x.shape[0], -1)
    alone = torch.cat([head, found.keep[:, : found.first] + prefix], dim=1)  # the prefix, and those that nothing joins
    targets = found.keep[:, found.first :]
    places = torch.arange(found.first, found.keep.shape[1], device=x.device)
    joins = (places[:, None] == found.into[:, None, :]).to(x.dtype)  # (B, n - first, r)
    given = _terms_of(x, size, weight, found.gone, prefix)
    mean, grown = _averages(_terms_of(x, size, weight, targets, prefix) + joins @ given)
    return torch.cat([take(x, alone), mean.to(x.dtype)], dim=1), torch.cat([take(size, alone), grown], dim=1)


def _sizes_and_weights(x: Tensor, size: Tensor | None, prefix: int, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B, p + t), and how much each patch counts in an average, (B, t)."""
    size = torch.ones_like(x[..., 0]) if size is None else size.expand(x.shape[0], -1)
    return size, size[:, prefix:] if weight is None else weight.to(size).clamp_min(TINY)


def _terms_of(x: Tensor, size: Tensor, weight: Tensor, index: Tensor, prefix: int) -> Tensor:
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
