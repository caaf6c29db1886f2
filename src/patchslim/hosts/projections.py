"""Two ways in which an attention holds its projections: one `qkv` layer as in timm, or three layers as in transformers.

Tokens y are (B, n, d), or (n, B, d) with tokens along axis 0. Queries, keys and values are (B, H, n, d_h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from patchslim.hosts.split_qkv import SplitQkv
from patchslim.kernels.available import few_rows

ONE_PRODUCT = 0.75  # share of queries from which one product gives them, keys and values, on a GPU; else two that fit
Projected = tuple[Tensor, Tensor, Tensor]  # queries, keys, values


def through(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output, without calling one that does nothing: at batch 1 the idle calls of a ViT cost a percent."""
    idle = isinstance(module, nn.Identity) or (isinstance(module, (nn.Dropout, DropPath)) and not module.training)
    return x if idle else module(x)


def one_product(y: Tensor, n: int, axis: int) -> bool:
    """Whether queries nobody needs are cheaper than a second product: of few rows a GPU takes as long for any."""
    return few_rows(y) or (axis == 0 and n >= ONE_PRODUCT * y.shape[0])


def split_heads(projected: Tensor, shape: tuple[int, int], axis: int) -> Tensor:
    """(B, n, H · d_h) or, with tokens along axis 0, (n, B, H · d_h) → (B, H, n, d_h), a view; shape is (H, d_h)."""
    split: Tensor = projected.unflatten(-1, shape)
    return split.permute(1, 2, 0, 3) if axis == 0 else split.transpose(1, 2)


def join_heads(mixed: Tensor, axis: int) -> Tensor:
    """(B, H, n, d_h) → (B, n, H · d_h) or, with tokens along axis 0, (n, B, H · d_h)."""
    return (mixed.permute(2, 0, 1, 3) if axis == 0 else mixed.transpose(1, 2)).flatten(2)


@dataclass(frozen=True)
class FusedQkv:
    """timm's `Attention`: queries, keys and values are rows of one `qkv` weight."""

    def project(self, attn: Any, y: Tensor, n: int, axis: int = 1) -> Projected:
        """Queries of the first `n` tokens, keys and values of all."""
        if n == y.shape[axis] or (one_product(y, n, axis) and not isinstance(attn.qkv, SplitQkv)):
            q, k, v = (self._heads(attn, part, axis) for part in attn.qkv(y).chunk(3, dim=-1))
            return through(attn.q_norm, q[:, :, :n]), through(attn.k_norm, k), v
        return self.queries(attn, y.narrow(axis, 0, n), axis), *self.keys_values(attn, y, axis)

    def read(self, attn: Any, y: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Keys and values of all tokens; queries too where they come for nothing."""
        if few_rows(y) and not isinstance(attn.qkv, SplitQkv):
            return self.project(attn, y, y.shape[1])
        return None, *self.keys_values(attn, y)

    def queries(self, attn: Any, y: Tensor, axis: int = 1) -> Tensor:
        """Those of all tokens given."""
        if isinstance(attn.qkv, SplitQkv):
            q = attn.qkv.q(y)
        else:
            q = F.linear(y, attn.qkv.weight[: attn.attn_dim], _rows_of(attn.qkv.bias, slice(attn.attn_dim)))
        return through(attn.q_norm, self._heads(attn, q, axis))

    def keys_values(self, attn: Any, y: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
        """Those of all tokens given."""
        if isinstance(attn.qkv, SplitQkv):
            kv = attn.qkv.kv(y)
        else:
            kv = F.linear(y, attn.qkv.weight[attn.attn_dim :], _rows_of(attn.qkv.bias, slice(attn.attn_dim, None)))
        k, v = (self._heads(attn, part, axis) for part in kv.chunk(2, dim=-1))
        return through(attn.k_norm, k), v

    def output(self, attn: Any, mixed: Tensor, axis: int = 1) -> Tensor:
        """The projection after the heads: (B, H, n, d_h) → (B, n, d), or (n, B, d)."""
        return through(attn.proj_drop, attn.proj(through(attn.norm, join_heads(mixed, axis))))

    def scale(self, attn: Any) -> float:
        """What products of queries and keys are scaled by."""
        return attn.scale

    def dropout(self, attn: Any) -> float:
        """The rate at which attention is dropped; 0 outside training."""
        return attn.attn_drop.p if attn.training else 0.0

    def fused(self, attn: Any) -> bool:
        """Whether a library's fused kernel may mix."""
        return attn.fused_attn

    def _heads(self, attn: Any, projected: Tensor, axis: int) -> Tensor:
        return split_heads(projected, (attn.num_heads, attn.head_dim), axis)


def _rows_of(bias: Tensor | None, rows: slice) -> Tensor | None:
    return None if bias is None else bias[rows]


@dataclass(frozen=True)
class SeparateQkv:
    """An attention of transformers: `q_proj`, `k_proj` and `v_proj`, so that each runs on the tokens it is for.

    Other names differ from model to model.
    """

    out: str
    heads: str
    scale_name: str
    dropout_name: str

    def project(self, attn: Any, y: Tensor, n: int, axis: int = 1) -> Projected:
        """Queries of the first `n` tokens, keys and values of all."""
        return self.queries(attn, y.narrow(axis, 0, n), axis), *self.keys_values(attn, y, axis)

    def read(self, attn: Any, y: Tensor) -> tuple[None, Tensor, Tensor]:
        """Keys and values of all tokens."""
        return None, *self.keys_values(attn, y)

    def queries(self, attn: Any, y: Tensor, axis: int = 1) -> Tensor:
        """Those of all tokens given."""
        return self._heads(attn, attn.q_proj(y), axis)

    def keys_values(self, attn: Any, y: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
        """Those of all tokens given."""
        return self._heads(attn, attn.k_proj(y), axis), self._heads(attn, attn.v_proj(y), axis)

    def output(self, attn: Any, mixed: Tensor, axis: int = 1) -> Tensor:
        """The projection after the heads: (B, H, n, d_h) → (B, n, d), or (n, B, d)."""
        return getattr(attn, self.out)(join_heads(mixed, axis))

    def scale(self, attn: Any) -> float:
        """What products of queries and keys are scaled by."""
        return getattr(attn, self.scale_name)

    def dropout(self, attn: Any) -> float:
        """The rate at which attention is dropped; 0 outside training."""
        return getattr(attn, self.dropout_name) if attn.training else 0.0

    def fused(self, attn: Any) -> bool:
        """Whether a library's fused kernel may mix."""
        return attn.config._attn_implementation != "eager"

    def _heads(self, attn: Any, projected: Tensor, axis: int) -> Tensor:
        return split_heads(projected, (getattr(attn, self.heads), -1), axis)


Projections = FusedQkv | SeparateQkv
