"""A timm `Block`, computed for some of its tokens only (paper, Eq. 2; design: queries from the kept tokens,
keys and values from every token that came in)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn


def through(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output, without calling one that does nothing: at batch 1 the idle calls of a ViT cost a percent."""
    idle = isinstance(module, nn.Identity) or (isinstance(module, (nn.Dropout, DropPath)) and not module.training)
    return x if idle else module(x)


def project(attn: Any, y: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the first `n` tokens, keys and values of all, from rows of the host's one `qkv` weight.

    y (B, n_in, d) → q (B, H, n, d_h), k and v (B, H, n_in, d_h).
    """
    batch, n_in, _ = y.shape
    heads, head_dim = attn.num_heads, attn.head_dim
    if n == n_in:
        qkv = attn.qkv(y).reshape(batch, n_in, 3, heads, head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    else:
        split = heads * head_dim
        weight, bias = attn.qkv.weight, attn.qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else (bias[:split], bias[split:])
        q = F.linear(y[:, :n], weight[:split], q_bias).reshape(batch, n, heads, head_dim).transpose(1, 2)
        kv = F.linear(y, weight[split:], kv_bias).reshape(batch, n_in, 2, heads, head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
    return through(attn.q_norm, q), through(attn.k_norm, k), v


def attend(attn: Any, y: Tensor, n: int) -> Tensor:
    """The MSA of Eq. 1 for the first `n` tokens: y (B, n_in, d) → (B, n, d)."""
    q, k, v = project(attn, y, n)
    if attn.fused_attn:
        dropout = attn.attn_drop.p if attn.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    else:
        out = attn.attn_drop((q * attn.scale @ k.transpose(-2, -1)).softmax(dim=-1)) @ v
    out = through(attn.norm, out.transpose(1, 2).reshape(y.shape[0], n, attn.attn_dim))
    return through(attn.proj_drop, attn.proj(out))


def attention_map(block: Any, x: Tensor, n: int) -> Tensor:
    """P_l^h of the first `n` tokens over all: x (B, n_in, d) → (B, H, n, n_in), in at least fp32."""
    q, k, _ = project(block.attn, block.norm1(x), n)
    logits: Tensor = q * block.attn.scale @ k.transpose(-2, -1)
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(wide).softmax(dim=-1)


def run_block(block: Any, x: Tensor, n: int, carry: bool = False) -> Tensor:
    """One slimmed block (Eq. 2): everything but keys and values runs on the first `n` tokens only.

    x (B, n_in, d) → (B, n, d); with `carry` the other tokens follow unchanged: (B, n_in, d).
    """
    kept = x[:, :n]
    kept = kept + through(block.drop_path1, through(block.ls1, attend(block.attn, block.norm1(x), n)))
    kept = kept + through(block.drop_path2, through(block.ls2, block.mlp(block.norm2(kept))))
    return torch.cat([kept, x[:, n:]], dim=1) if carry and n < x.shape[1] else kept
