"""Taylor importance: what removing patches does to what the head reads, to first order.

A gate on a patch multiplies its weight in every attention row, and in the pool, that reads it. J holds the derivatives
of the readout in the gates; taking a patch away from a block on closes its gates there and in all later blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

TRUST = 0.5  # in cross terms between removals; docs/notebook/decisions.md


def probes(features: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random directions of each image's own: features (B, F) → (B, F, count), with E‖Qᵀv‖² = ‖v‖² / ‖features‖².

    A squared length along a few random directions is that of the whole vector on average, and over many images the
    noise averages out; so J takes `count` backward passes, not one for every feature.
    """
    drawn = torch.randn(*features.shape, count, generator=generator).to(features)
    scale = features.square().sum(dim=1).clamp_min(1e-30).rsqrt() / count**0.5
    along: Tensor = drawn * scale[:, None, None]
    return along


def removal_effect(jacobian: Tensor) -> Tensor:
    """‖Σ_{k≥l} J_{k,i}‖²: what removing patch i from block l on does. (B, blocks, N, K) → (B, blocks, N)."""
    return jacobian.flip(1).cumsum(dim=1).flip(1).square().sum(dim=-1)


class Removal:
    """Which patch to remove next: the one whose removal changes the readout least per MAC saved.

    The change of the readout is taken as linear in the gates, so that ‖r − Σ J_u‖² sees redundancy: patches that say
    the same can't all go, and effects that cancel may. Cross terms count by `trust` only: sums of many
    first-order changes are less true than each of them. jacobian (blocks, N, R): R probes of all images; residual (R,).
    """

    def __init__(self, jacobian: Tensor, residual: Tensor, trust: float = TRUST) -> None:
        self.trust = trust
        self.blocks, self.patches, _ = jacobian.shape
        self.rows = jacobian.flatten(0, 1)
        self.norms = self.rows.square().sum(dim=1)
        self.slope = self.rows @ residual

    def best(self, exits: Tensor, saved: Tensor) -> int:
        """exits (N,): the last block that computes each patch; saved (blocks + 1,): MACs that one patch less in a block
        saves, 0 where none may go."""
        unit = (exits - 1).clamp_min(0) * self.patches + torch.arange(self.patches, device=exits.device)
        gain = saved[exits]
        change = (self.norms[unit] - 2 * self.trust * self.slope[unit]) / gain.clamp_min(1.0)
        return int(change.masked_fill((exits < 1) | (gain <= 0), torch.inf).argmin())

    def remove(self, patch: int, block: int) -> None:
        """Patch `patch` is no longer computed in block `block` (from 1)."""
        self.slope -= self.rows @ self.rows[(block - 1) * self.patches + patch]
