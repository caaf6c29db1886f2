"""Second-order knockoffs (Candès et al., Panning for Gold, 2018): copies that correlate as the originals do, and with
the originals as these do among themselves, but that no answer depends on."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-9  # on the covariance, so that it can be inverted
SHRINK = 0.999  # of the largest distance that keeps the joint covariance positive


class Knockoffs:
    """Draws knockoffs of patch features. One covariance over patches serves all channels, each at unit scale: a few
    hundred images could not tell a covariance per channel."""

    def __init__(self, features: Tensor) -> None:
        """features (K, N, c): the patches of K images."""
        self.mean = features.double().mean(dim=0)
        centred = features.double() - self.mean
        self.scale = centred.square().mean(dim=(0, 1)).sqrt().clamp_min(1e-12)  # (c,)
        rows = (centred / self.scale).transpose(1, 2).flatten(0, 1)  # (K · c, N)
        covariance = rows.T @ rows / len(rows)
        deviation = covariance.diagonal().clamp_min(1e-12).sqrt()
        correlation = covariance / deviation / deviation[:, None]
        # The equicorrelated choice: the farthest from the originals that is the same for every patch.
        least = float(torch.linalg.eigvalsh(correlation)[0].clamp_min(1e-6))
        self.distance = min(1.0, 2 * least) * SHRINK * deviation.square()  # diag(s), (N,)
        self.covariance = covariance
        one = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        solved = torch.linalg.solve(covariance + RIDGE * one, torch.diag(self.distance))
        self.shift = one - solved  # I - Σ⁻¹ diag(s)
        spread = 2 * torch.diag(self.distance) - torch.diag(self.distance) @ solved
        values, vectors = torch.linalg.eigh((spread + spread.T) / 2)
        self.root = vectors * values.clamp_min(0.0).sqrt()

    def draw(self, features: Tensor) -> Tensor:
        """Knockoffs of (B, N, c), with torch's current random numbers."""
        rows = ((features.double() - self.mean) / self.scale).transpose(1, 2)  # (B, c, N)
        noise = torch.randn_like(rows)
        found = rows @ self.shift + noise @ self.root.T
        knockoffs: Tensor = found.transpose(1, 2) * self.scale + self.mean
        return knockoffs.to(features.dtype)
