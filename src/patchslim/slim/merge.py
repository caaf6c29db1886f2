"""Matching patches that say the same, and merging them. Pure tensor functions: no loop over images, nothing that waits
for the device, and sums as products with a 0/1 matrix instead of scattered additions.

Shapes: B images, t patches that come in, n that stay, r = t - n that go.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.slim.tokens import Tokens, pick, take

IMPORTANCE = 0.3  # how much a patch that the class token attends to resists being merged away; docs/decisions.md


class Match(NamedTuple):
    """Which patches stay, which go, and which of those that stay each of them joins."""

    keep: Tensor  # (B, n), among the patches that come in
    gone: Tensor  # (B, r), likewise
    into: Tensor  # (B, r), places in `keep`
    first: int  # no patch joins a kept one before this place


def mean_keys(k: Tensor, prefix: int) -> Tensor:
    """What patches are compared by: keys averaged over heads, at unit length. (B, H, p + t, d_h) → (B, t, d_h)."""
    return F.normalize(k[:, :, prefix:].mean(dim=1), dim=-1)


def match(keys: Tensor, n: int, importance: Tensor | None = None) -> Match:
    """Pair patches by similarity: keys (B, t, d_h) at unit length, importance (B, t) with mean 1.

    Every second patch looks for its nearest among the others; the r pairs that are most alike become one. A patch
    that matters much to the class token has to be that much more alike to go.
    """
    movers, hosts = keys[:, ::2], keys[:, 1::2]
    weight = None if importance is None else importance[:, ::2]
    return match_halves(movers @ hosts.transpose(1, 2), keys.shape[1] - n, weight)


def match_halves(similarity: Tensor, r: int, importance: Tensor | None = None) -> Match:
    """The same from the similarity of even to odd patches, (B, ⌈t/2⌉, ⌊t/2⌋); importance (B, ⌈t/2⌉)."""
    batch, movers, hosts = similarity.shape
    alike, nearest = similarity.max(dim=2)
    if importance is not None:
        alike = alike - IMPORTANCE * importance
    rank = alike.argsort(dim=1, descending=True)
    gone, stay = rank[:, :r], rank[:, r:]
    odd = torch.arange(1, 2 * hosts, 2, device=rank.device).expand(batch, -1)
    return Match(torch.cat([2 * stay, odd], dim=1), 2 * gone, nearest.gather(1, gone) + movers - r, movers - r)


def nearest_kept(keys: Tensor, keep: Tensor, gone: Tensor) -> Match:
    """Each patch that goes joins the most alike of those that stay: keys (B, t, d_h), keep (B, n), gone (B, r)."""
    similarity = take(keys, gone) @ take(keys, keep).transpose(1, 2)
    return Match(keep, gone, similarity.argmax(dim=2), 0)


def merge(tokens: Tokens, found: Match, prefix: int) -> Tokens:
    """Average what goes, weighted by size, into what it joins; sizes add up."""
    kept = pick(tokens, found.keep, prefix)
    size = torch.ones_like(tokens.x[..., 0]) if tokens.size is None else tokens.size
    own = kept.size if kept.size is not None else torch.ones_like(kept.x[..., 0])
    index = found.gone + prefix
    weight = take(size, index)[..., None]  # (B, r, 1)
    given = torch.cat([take(tokens.x, index) * weight, weight], dim=2)  # (B, r, d + 1): the last channel sums sizes
    begin = prefix + found.first
    places = torch.arange(found.first, found.keep.shape[1], device=index.device)
    joins = places[:, None] == found.into[:, None, :]  # (B, n - first, r)
    taken = joins.to(given.dtype) @ given
    total = own[:, begin:] + taken[..., -1]
    x = (kept.x[:, begin:] * own[:, begin:, None] + taken[..., :-1]) / total[..., None]
    return Tokens(
        torch.cat([kept.x[:, :begin], x.to(kept.x.dtype)], dim=1),
        torch.cat([own[:, :begin], total], dim=1),
        kept.place,
        None if tokens.source is None else _join_sources(tokens.source, kept.source, found),
    )


def _join_sources(source: Tensor, kept: Tensor | None, found: Match) -> Tensor:
    """(B, t, N), (B, n, N) → (B, n, N)."""
    assert kept is not None
    joins = torch.arange(kept.shape[1], device=kept.device)[:, None] == found.into[:, None, :]
    joined = joins.float() @ take(source, found.gone).float()
    return kept | (joined > 0)
