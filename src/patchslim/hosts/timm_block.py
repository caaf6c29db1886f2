"""A timm `Block`, computed for some of its tokens only (paper, Eq. 2; design: queries from the kept tokens,
keys and values from every token that came in)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from patchslim.hosts.attention import Mix, plain
from patchslim.hosts.base import Incoming
from patchslim.hosts.split_qkv import SplitQkv


def through(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output, without calling one that does nothing: at batch 1 the idle calls of a ViT cost a percent."""
    idle = isinstance(module, nn.Identity) or (isinstance(module, (nn.Dropout, DropPath)) and not module.training)
    return x if idle else module(x)


def project(attn: Any, y: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the first `n` tokens, keys and values of all, from rows of the host's one `qkv` weight.

    y (B, n_in, d) → q (B, H, n, d_h), k and v (B, H, n_in, d_h).
    """
    batch, n_in, _ = y.shape
    if n == n_in:
        qkv = attn.qkv(y).reshape(batch, n_in, 3, attn.num_heads, attn.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return through(attn.q_norm, q), through(attn.k_norm, k), v
    return queries(attn, y[:, :n]), *keys_values(attn, y)


def queries(attn: Any, y: Tensor) -> Tensor:
    """y (B, n, d) → (B, H, n, d_h)."""
    q = _of_queries(attn, y).reshape(*y.shape[:2], attn.num_heads, attn.head_dim)
    return through(attn.q_norm, q.transpose(1, 2))


def keys_values(attn: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    """y (B, n_in, d) → k and v (B, H, n_in, d_h)."""
    kv = _of_keys_values(attn, y).reshape(*y.shape[:2], 2, attn.num_heads, attn.head_dim)
    k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
    return through(attn.k_norm, k), v


def _of_queries(attn: Any, y: Tensor) -> Tensor:
    """The queries' rows of `qkv`: (B, n, d) → (B, n, H · d_h)."""
    if isinstance(attn.qkv, SplitQkv):
        return attn.qkv.q(y)  # type: ignore[no-any-return]
    bias = None if attn.qkv.bias is None else attn.qkv.bias[: attn.attn_dim]
    return F.linear(y, attn.qkv.weight[: attn.attn_dim], bias)


def _of_keys_values(attn: Any, y: Tensor) -> Tensor:
    """The keys' and values' rows of `qkv`: (B, n_in, d) → (B, n_in, 2 · H · d_h)."""
    if isinstance(attn.qkv, SplitQkv):
        return attn.qkv.kv(y)  # type: ignore[no-any-return]
    bias = None if attn.qkv.bias is None else attn.qkv.bias[attn.attn_dim :]
    return F.linear(y, attn.qkv.weight[attn.attn_dim :], bias)


def attend(attn: Any, q: Tensor, k: Tensor, v: Tensor, mix: Mix) -> Tensor:
    """The MSA of Eq. 1 from its projections: (B, H, n, d_h) and twice (B, H, n_in, d_h) → (B, n, d)."""
    dropout = attn.attn_drop.p if attn.training else 0.0
    out = mix(q, k, v, scale=attn.scale, dropout=dropout, fused=attn.fused_attn)
    out = through(attn.norm, out.transpose(1, 2).reshape(q.shape[0], q.shape[2], attn.attn_dim))
    return through(attn.proj_drop, attn.proj(out))


def rest(block: Any, kept: Tensor, attended: Tensor) -> Tensor:
    """Both shortcuts and the MLP, on the kept tokens: (B, n, d), (B, n, d) → (B, n, d)."""
    kept = kept + through(block.drop_path1, through(block.ls1, attended))
    return kept + through(block.drop_path2, through(block.ls2, block.mlp(block.norm2(kept))))


def attention_map(block: Any, x: Tensor, n: int) -> Tensor:
    """P_l^h of the first `n` tokens over all: x (B, n_in, d) → (B, H, n, n_in), in at least fp32."""
    q, k, _ = project(block.attn, block.norm1(x), n)
    return _rows(block.attn, q, k)


def _rows(attn: Any, q: Tensor, k: Tensor, size: Tensor | None = None) -> Tensor:
    """Softmax rows of some queries: (B, H, n, d_h), (B, H, n_in, d_h) → (B, H, n, n_in), in at least fp32."""
    logits: Tensor = q * attn.scale @ k.transpose(-2, -1)
    if size is not None:
        logits = logits + size.log()[:, None, None, :]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(dim=-1)


class TimmBlockMath:
    """How slim blocks compute with the parts of a timm `Block`. It holds nothing."""

    def run(self, block: Any, x: Tensor, n: int, carry: bool = False) -> Tensor:
        """One slimmed block (Eq. 2) on sorted tokens: everything but keys and values runs on the first `n` only.

        x (B, n_in, d) → (B, n, d); with `carry` the other tokens follow unchanged: (B, n_in, d).
        """
        kept = rest(block, x[:, :n], attend(block.attn, *project(block.attn, block.norm1(x), n), plain))
        return torch.cat([kept, x[:, n:]], dim=1) if carry and n < x.shape[1] else kept

    def read(self, block: Any, x: Tensor) -> Incoming:
        """What the block knows of its input before it computes anything: x (B, n_in, d)."""
        y = block.norm1(x)
        return Incoming(x, y, *keys_values(block.attn, y))

    def compute(self, block: Any, kept: Tensor, incoming: Incoming, mix: Mix) -> Tensor:
        """Eq. 2 with any tokens for queries: kept (B, n, d) → (B, n, d)."""
        y = incoming.y if kept is incoming.x else block.norm1(kept)
        return rest(block, kept, attend(block.attn, queries(block.attn, y), incoming.k, incoming.v, mix))

    def class_attention(self, block: Any, incoming: Incoming, size: Tensor | None) -> Tensor:
        """How the first token attends to all, averaged over heads: (B, n_in), rows sum to 1."""
        return _rows(block.attn, queries(block.attn, incoming.y[:, :1]), incoming.k, size).mean(dim=1)[:, 0]
