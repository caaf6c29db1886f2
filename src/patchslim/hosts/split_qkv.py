"""A `qkv` layer as two whole ones, for whatever takes layers and no rows of their weights, as quantisers do."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, nn


class SplitQkv(nn.Module):
    """Stands in for an attention's `qkv`: its first rows, the queries', in one layer, all others in another."""

    def __init__(self, qkv: nn.Linear, queries: int) -> None:
        super().__init__()
        self.q, self.kv = _rows(qkv, 0, queries), _rows(qkv, queries, qkv.out_features)
        self.train(qkv.training)

    @property
    def in_features(self) -> int:
        """As the whole layer has it."""
        return self.q.in_features

    def forward(self, y: Tensor) -> Tensor:
        """What the whole layer gives: (…, d) → (…, 3d)."""
        return torch.cat([self.q(y), self.kv(y)], dim=-1)


def _rows(layer: nn.Linear, begin: int, end: int) -> nn.Linear:
    """Some of a layer's outputs as a layer of its own."""
    own = nn.Linear(layer.in_features, end - begin, layer.bias is not None, device="meta")
    own.weight = nn.Parameter(layer.weight.detach()[begin:end].clone(), layer.weight.requires_grad)
    if layer.bias is not None:
        own.bias = nn.Parameter(layer.bias.detach()[begin:end].clone(), layer.bias.requires_grad)
    return own


def split_qkv_(model: nn.Module, whole: Container[str]) -> nn.Module:
    """Split every attention's `qkv` (changes the model) but those named in `whole`."""
    for name, attn in list(model.named_modules()):
        qkv: Any = getattr(attn, "qkv", None)
        if isinstance(qkv, nn.Linear) and hasattr(attn, "attn_dim") and f"{name}.qkv" not in whole:
            attn.qkv = SplitQkv(qkv, attn.attn_dim)
    return model
