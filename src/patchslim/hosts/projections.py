"""Two ways in which an attention holds its projections: three layers as in transformers, or one `qkv` layer as in timm.

Tokens y are (B, n, d), or (n, B, d) with tokens along axis 0. Queries, keys and values are (B, H, n, d_h).
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.hosts.parts import readable, through
from patchslim.kernels.available import few_rows

OF_BLOCKS = ("output_hidden_states", "output_attentions")  # what transformers may be asked of every block
ONE_PRODUCT = 0.75  # share of queries from which one product gives them, keys and values, on a GPU; else two that fit


def one_product(y: Tensor, n: int, axis: int) -> bool:
    """Whether queries nobody needs are cheaper than a second product: of few rows a GPU takes as long for any."""
    return few_rows(y) or (axis == 0 and n >= ONE_PRODUCT * y.shape[0])


@dataclass(frozen=True)
class Projections:
    """An attention with `q_proj`, `k_proj` and `v_proj`, each run on the tokens it is for; other names differ."""

    heads: str
    scale_name: str
    out: str
    dropout_name: str

    def project(self, attn: Any, y: Tensor, n: int, axis: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the first `n` tokens, keys and values of all."""
        return self.queries(attn, y.narrow(axis, 0, n), axis), *self.keys_values(attn, y, axis)

    def read(self, attn: Any, y: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Keys and values of all tokens; queries too where they come for nothing."""
        return None, *self.keys_values(attn, y)

    def queries(self, attn: Any, y: Tensor, axis: int = 1) -> Tensor:
        """Those of all tokens given."""
        return self._split(attn, attn.q_proj(y), axis)

    def keys_values(self, attn: Any, y: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
        """Those of all tokens given."""
        return self._split(attn, attn.k_proj(y), axis), self._split(attn, attn.v_proj(y), axis)

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

    def asked(self, attn: Any) -> dict[str, Any]:
        """What the model's config asks of every block, unless the call says otherwise."""
        return {wanted: getattr(attn.config, wanted, False) for wanted in OF_BLOCKS}

    def _split(self, attn: Any, projected: Tensor, axis: int) -> Tensor:
        """(B, n, H · d_h) or, with tokens along axis 0, (n, B, H · d_h) → (B, H, n, d_h), a view."""
        split: Tensor = projected.unflatten(-1, (getattr(attn, self.heads), -1))
        return split.permute(1, 2, 0, 3) if axis == 0 else split.transpose(1, 2)


def join_heads(mixed: Tensor, axis: int) -> Tensor:
    """(B, H, n, d_h) → (B, n, H · d_h) or, with tokens along axis 0, (n, B, H · d_h)."""
    return (mixed.permute(2, 0, 1, 3) if axis == 0 else mixed.transpose(1, 2)).flatten(2)


@dataclass(frozen=True)
class FusedQkv(Projections):
    """timm's `Attention`: queries, keys and values are rows of one `qkv` weight, or a `SplitQkv` stands there."""

    heads: str = "num_heads"
    scale_name: str = "scale"
    out: str = "proj"
    dropout_name: str = "attn_drop"  # a layer

    def project(self, attn: Any, y: Tensor, n: int, axis: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the first `n` tokens, keys and values of all."""
        if n == y.shape[axis] or not _in_rows(attn.qkv) or (one_product(y, n, axis) and _one_layer(attn.qkv)):
            q, k, v = self._parts(attn, attn.qkv(y), axis, 3)
            q = q if n == y.shape[axis] else q[:, :, :n]
            return through(attn.q_norm, q), through(attn.k_norm, k), v
        return super().project(attn, y, n, axis)

    def read(self, attn: Any, y: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Keys and values of all tokens; queries too where they come for nothing."""
        if not _in_rows(attn.qkv) or (few_rows(y) and _one_layer(attn.qkv)):
            return self.project(attn, y, y.shape[1])
        return super().read(attn, y)

    def queries(self, attn: Any, y: Tensor, axis: int = 1) -> Tensor:
        """Those of all tokens given."""
        q = attn.qkv.q(y) if isinstance(attn.qkv, SplitQkv) else _rows(attn.qkv, y, slice(attn.attn_dim))
        return through(attn.q_norm, self._split(attn, q, axis))

    def keys_values(self, attn: Any, y: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
        """Those of all tokens given."""
        kv = attn.qkv.kv(y) if isinstance(attn.qkv, SplitQkv) else _rows(attn.qkv, y, slice(attn.attn_dim, None))
        k, v = self._parts(attn, kv, axis, 2)
        return through(attn.k_norm, k), v

    def output(self, attn: Any, mixed: Tensor, axis: int = 1) -> Tensor:
        """The projection after the heads: (B, H, n, d_h) → (B, n, d), or (n, B, d)."""
        return through(attn.proj_drop, attn.proj(through(attn.norm, join_heads(mixed, axis))))

    def dropout(self, attn: Any) -> float:
        """The rate at which attention is dropped; 0 outside training."""
        return attn.attn_drop.p if attn.training else 0.0

    def fused(self, attn: Any) -> bool:
        """Whether a library's fused kernel may mix."""
        return attn.fused_attn

    def asked(self, attn: Any) -> dict[str, Any]:
        """timm's models have no config."""
        return {}

    def _parts(self, attn: Any, projected: Tensor, axis: int, parts: int) -> Sequence[Tensor]:
        """What one product gave, (B, n, parts · H · d_h) or with tokens along axis 0, as views (B, H, n, d_h)."""
        every: Tensor = projected.unflatten(-1, (parts, attn.num_heads, -1))
        return every.permute(2, 1, 3, 0, 4).unbind(0) if axis == 0 else every.permute(2, 0, 3, 1, 4).unbind(0)


def _rows(layer: Any, y: Tensor, rows: slice) -> Tensor:
    """Some of a layer's outputs, without the others where its weights may be read."""
    if not readable(layer, nn.Linear):
        return layer(y)[..., rows]
    return F.linear(y, layer.weight[rows], None if layer.bias is None else layer.bias[rows])


def _one_layer(qkv: nn.Module) -> bool:
    """Whether one product gives queries, keys and values."""
    return not isinstance(qkv, SplitQkv)


def _in_rows(qkv: nn.Module) -> bool:
    """Whether queries can be had without keys and values, and these without queries."""
    return isinstance(qkv, SplitQkv) or readable(qkv, nn.Linear)


class SplitQkv(nn.Module):
    """Stands in for an attention's `qkv`: its first rows, the queries', in one layer, all others in another. It is for
    whatever takes layers and no rows of their weights, as quantisers do."""

    def __init__(self, qkv: nn.Linear, queries: int) -> None:
        super().__init__()
        self.in_features = qkv.in_features
        self.q, self.kv = _layer(qkv, slice(queries)), _layer(qkv, slice(queries, None))
        self.train(qkv.training)

    def forward(self, y: Tensor) -> Tensor:
        """What the whole layer gives: (…, d) → (…, 3d)."""
        return torch.cat([self.q(y), self.kv(y)], dim=-1)


def _layer(layer: nn.Linear, rows: slice) -> nn.Linear:
    """Some of a layer's outputs as a layer of its own."""
    own = nn.Linear(layer.in_features, len(layer.weight[rows]), layer.bias is not None, device="meta")
    for name, parameter in layer.named_parameters():
        setattr(own, name, nn.Parameter(parameter.detach()[rows].clone(), parameter.requires_grad))
    return own


def split_qkv_(model: nn.Module, whole: Container[str]) -> nn.Module:
    """Split every attention's `qkv` (changes the model) but those named in `whole`."""
    for name, attn in list(model.named_modules()):
        qkv: Any = getattr(attn, "qkv", None)
        if isinstance(qkv, nn.Linear) and hasattr(attn, "attn_dim") and f"{name}.qkv" not in whole:
            attn.qkv = SplitQkv(qkv, attn.attn_dim)
    return model
