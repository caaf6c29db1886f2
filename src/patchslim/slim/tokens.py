"""What passes from one slim block to the next where a plain tensor is not enough."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Tokens(NamedTuple):
    """Tokens of a rectangular batch: prefix first, then n patches, in an order of the image's own.

    `size` is None until something merges. `place` and `source` are there only when somebody asks for them.
    """

    x: Tensor  # (B, p + n, d)
    size: Tensor | None = None  # (B, p + n), or (1, p + n): input patches that each token stands for
    place: Tensor | None = None  # (B, n): the input patch at which each token sits
    source: Tensor | None = None  # (B, n, N) boolean: the input patches that each token stands for
    normed: Tensor | None = None  # (B, p + n, d): LN1 of them in the block they go to, where that came for nothing


def start(x: Tensor, prefix: int, places: bool, sources: bool) -> Tokens:
    """The tokens that enter block 1: every patch stands for itself. x (B, p + N, d)."""
    batch, patches = x.shape[0], x.shape[1] - prefix
    place = torch.arange(patches, device=x.device).expand(batch, -1) if places else None
    source = torch.eye(patches, dtype=torch.bool, device=x.device).expand(batch, -1, -1) if sources else None
    return Tokens(x, None, place, source)


def sort_first(tokens: Tokens, order: Tensor, prefix: int) -> Tokens:
    """Tokens that enter block 1 in the order of a static plan: order (p + N,), prefix tokens first."""
    source = None if tokens.source is None else tokens.source.index_select(1, order[prefix:] - prefix)
    return tokens._replace(x=tokens.x.index_select(1, order), source=source)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Each image's own rows: (B, n, …), (B, m) → (B, m, …)."""
    if rows.ndim == 2:
        return rows.gather(1, index)
    # Whole rows of one long table: a gather along the token axis would look up every number by itself.
    batch, n = rows.shape[:2]
    begin = torch.arange(0, batch * n, n, device=index.device)
    flat = (index + begin[:, None]).flatten()
    return rows.reshape(batch * n, *rows.shape[2:]).index_select(0, flat).reshape(*index.shape, *rows.shape[2:])


def pick(tokens: Tokens, keep: Tensor, prefix: int) -> Tokens:
    """The prefix and each image's own patches: keep (B, n), counted without the prefix."""
    head = torch.arange(prefix, device=keep.device).expand(keep.shape[0], -1)
    every = torch.cat([head, keep + prefix], dim=1)
    return Tokens(
        take(tokens.x, every),
        None if tokens.size is None else take(tokens.size, every),
        None if tokens.place is None else take(tokens.place, keep),
        None if tokens.source is None else take(tokens.source, keep),
    )


def first(tokens: Tokens, n: int, prefix: int) -> Tokens:
    """The prefix and the first `n` patches, for every image alike."""
    return Tokens(
        tokens.x[:, : prefix + n],
        None if tokens.size is None else tokens.size[:, : prefix + n],
        None if tokens.place is None else tokens.place[:, :n],
        None if tokens.source is None else tokens.source[:, :n],
    )
