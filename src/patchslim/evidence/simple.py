"""Scores that know less than the impact score: the paper's two ablations and two fixed patterns. High ones stay."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_norm(attention: Tensor) -> Tensor:
    """The paper's "Attn": the norm of a token's column in the block's own map, (B, H, n, n_in) → (B, n_in)."""
    return attention.square().sum(dim=(1, 2)).sqrt()


def random_scores(patches: int, seed: int) -> Tensor:
    """A random order of the patches, the same for the same seed: (N,)."""
    return torch.rand(patches, generator=torch.Generator().manual_seed(seed))


def positions(grid: tuple[int, int]) -> Tensor:
    """Patch centres, row by row, with the middle of the grid as origin: (N, 2)."""
    rows = torch.arange(grid[0], dtype=torch.float64) - (grid[0] - 1) / 2
    columns = torch.arange(grid[1], dtype=torch.float64) - (grid[1] - 1) / 2
    return torch.cartesian_prod(rows, columns)


def radial_scores(grid: tuple[int, int]) -> Tensor:
    """Near the centre first: (N,)."""
    distance: Tensor = torch.linalg.vector_norm(positions(grid), dim=1)
    return -distance


def spread_scores(grid: tuple[int, int]) -> Tensor:
    """An even spread at every count: each next patch is the one farthest from those before it (N,)."""
    places = positions(grid)
    nearest = torch.full((len(places),), torch.inf, dtype=torch.float64)
    scores = torch.empty(len(places))
    current = int(torch.linalg.vector_norm(places, dim=1).argmin())
    for rank in range(len(places)):
        scores[current] = -rank
        nearest = torch.minimum(nearest, torch.linalg.vector_norm(places - places[current], dim=1))
        nearest[current] = -1.0
        current = int(nearest.argmax())
    return scores
