"""Networks in which tokens count by a weight instead of going: how methods learn what to remove."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from patchslim.hosts import Host
from patchslim.kernels.attention import Mix
from patchslim.recover.networks import Outputs

TINY = 1e-6
NOTHING = 1e-30  # added to weights that a pool reads: it may take their logarithm, or divide by their sum


def weighted(weight: Tensor, seen: list[Tensor] | None = None) -> Mix:
    """Attention in which a key counts by its weight in 0 … 1 (B, n); at 0 it is as if it were not there.

    A token always sees itself, so that rows of tokens nobody sees stay finite. The map (B, H, n, n) goes into `seen`.
    Unlike log(weight) on the logits this has a derivative at 0.
    """

    def mix(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        logits = (q * scale @ k.transpose(-2, -1)).float()
        counted = weight[:, None, None, :].expand(-1, 1, q.shape[2], -1).clone()
        counted.diagonal(dim1=2, dim2=3).fill_(1.0)
        rows = (logits - logits.amax(dim=-1, keepdim=True).detach()).exp() * counted
        rows = rows / rows.sum(dim=-1, keepdim=True).clamp_min(TINY)
        if seen is not None:
            seen.append(rows)
        return F.dropout(rows.to(v.dtype), dropout) @ v

    return mix


def outputs_under(host: Host, tokens: Tensor, weight: Tensor) -> Outputs:
    """What a host says when tokens (B, n, d) count by their weight (B, n) where the head pools."""
    features = host.features(tokens, weight + NOTHING)
    if not host.info.reads_patches:
        return Outputs(host.logits(tokens), features)
    if host.info.readout == "class+auxiliary":  # its features are the logits already
        return Outputs(features, features)
    return Outputs(host.classifiers[0](features), features)
