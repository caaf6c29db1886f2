"""A timm `Block`, computed for some of its tokens only (paper, Eq. 2; design: queries from the kept tokens,
keys and values from every token that came in)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from patchslim.hosts.attention import Mix, plain
from patchslim.hosts.base import ClassQuery, Incoming
from patchslim.hosts.fast import KERNELS, few_rows, gelu_kernel_for, kernels_for
from patchslim.hosts.split_qkv import SplitQkv

if KERNELS:
    from patchslim.hosts import kernels, mlp_kernel

ONE_PRODUCT = 0.75  # share of queries from which one product gives them, keys and values, on a GPU; else two that fit


def through(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output, without calling one that does nothing: at batch 1 the idle calls of a ViT cost a percent."""
    idle = isinstance(module, nn.Identity) or (isinstance(module, (nn.Dropout, DropPath)) and not module.training)
    return x if idle else module(x)


def token_major(x: Tensor) -> bool:
    """Whether tokens (B, n, d) lie in memory as (n, B, d)."""
    return x.stride(0) < x.stride(1)


def project(attn: Any, y: Tensor, n: int, axis: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the first `n` tokens, keys and values of all, from rows of the host's one `qkv` weight.

    y (B, n_in, d), or (n_in, B, d) with tokens along axis 0 → q (B, H, n, d_h), k and v (B, H, n_in, d_h).
    """
    if n == y.shape[axis] or (one_product(y, n, axis) and not isinstance(attn.qkv, SplitQkv)):
        q, k, v = (_heads(attn, part, axis) for part in attn.qkv(y).chunk(3, dim=-1))
        return through(attn.q_norm, q[:, :, :n]), through(attn.k_norm, k), v
    return queries(attn, y.narrow(axis, 0, n), axis), *keys_values(attn, y, axis)


def one_product(y: Tensor, n: int, axis: int) -> bool:
    """Whether queries nobody needs are cheaper than a second product, y as in `project`: for few rows it takes a GPU
    about as long whatever it computes."""
    return few_rows(y) or (axis == 0 and n >= ONE_PRODUCT * y.shape[0])


def queries(attn: Any, y: Tensor, axis: int = 1) -> Tensor:
    """y (B, n, d) or, with tokens along axis 0, (n, B, d) → (B, H, n, d_h)."""
    return through(attn.q_norm, _heads(attn, _of_queries(attn, y), axis))


def keys_values(attn: Any, y: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
    """y (B, n_in, d) or, with tokens along axis 0, (n_in, B, d) → k and v (B, H, n_in, d_h)."""
    k, v = (_heads(attn, part, axis) for part in _of_keys_values(attn, y).chunk(2, dim=-1))
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


def _heads(attn: Any, projected: Tensor, axis: int) -> Tensor:
    """(B, n, H · d_h) or, with tokens along axis 0, (n, B, H · d_h) → (B, H, n, d_h), a view."""
    split: Tensor = projected.unflatten(-1, (attn.num_heads, attn.head_dim))
    return split.permute(1, 2, 0, 3) if axis == 0 else split.transpose(1, 2)


def attend(attn: Any, q: Tensor, k: Tensor, v: Tensor, mix: Mix, axis: int = 1) -> Tensor:
    """The MSA of Eq. 1 from its projections: (B, H, n, d_h) and twice (B, H, n_in, d_h) → (B, n, d), or (n, B, d)."""
    dropout = attn.attn_drop.p if attn.training else 0.0
    out = mix(q, k, v, scale=attn.scale, dropout=dropout, fused=attn.fused_attn)
    out = (out.permute(2, 0, 1, 3) if axis == 0 else out.transpose(1, 2)).flatten(2)
    projected: Tensor = attn.proj(through(attn.norm, out))
    return through(attn.proj_drop, projected)


def rest(block: Any, kept: Tensor, attended: Tensor) -> Tensor:
    """Both shortcuts and the MLP, on the kept tokens: (B, n, d), (B, n, d) → (B, n, d), or all of them (n, B, d)."""
    return feed(block, first_shortcut(block, kept, attended))


def first_shortcut(block: Any, x: Tensor, attended: Tensor) -> Tensor:
    """Attention's output added to its input: (B, n, d), (B, n, d) → (B, n, d)."""
    return x + through(block.drop_path1, through(block.ls1, attended))


def feed(block: Any, x: Tensor) -> Tensor:
    """The MLP and its shortcut: (B, n, d) → (B, n, d)."""
    return x + through(block.drop_path2, through(block.ls2, fed(block.mlp, block.norm2(x))))


def fed(mlp: Any, y: Tensor) -> Tensor:
    """The MLP: (B, n, d) → (B, n, d); on a GPU its first layer and GELU in one kernel where they are plain ones."""
    if not (plain_mlp(mlp) and gelu_kernel_for(y, mlp.fc1.weight)):
        return mlp(y)  # type: ignore[no-any-return]
    hidden = mlp_kernel.linear_gelu(y, mlp.fc1.weight, mlp.fc1.bias)
    return mlp.fc2(hidden)  # type: ignore[no-any-return]


def plain_mlp(mlp: Any) -> bool:
    """Whether a module is two linear layers with an exact GELU in between, as they come."""
    if type(mlp) is not Mlp or type(mlp.act) is not nn.GELU or mlp.act.approximate != "none":
        return False
    idle = isinstance(mlp.norm, nn.Identity) and not (mlp.training and (mlp.drop1.p or mlp.drop2.p))
    return idle and type(mlp.fc1) is nn.Linear and mlp.fc1.bias is not None and type(mlp.fc1.weight.data) is Tensor


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

        x (B, n_in, d) → (B, n, d); with `carry` the other tokens follow unchanged: (B, n_in, d). Tokens that lie
        first in memory stay so: the kept ones are then one piece of it, and nothing is copied to take them.
        """
        axis = 0 if token_major(x) else 1
        x = x.transpose(0, 1) if axis == 0 else x
        q, k, v = project(block.attn, block.norm1(x), n, axis)
        kept = rest(block, x.narrow(axis, 0, n), attend(block.attn, q, k, v, plain, axis))
        if carry and n < x.shape[axis]:
            kept = torch.cat([kept, x.narrow(axis, n, x.shape[axis] - n)], dim=axis)
        return kept.transpose(0, 1) if axis == 0 else kept

    def read(self, block: Any, x: Tensor) -> Incoming:
        """What the block knows of its input before it computes anything: x (B, n_in, d)."""
        y = block.norm1(x)
        if few_rows(y) and not isinstance(block.attn.qkv, SplitQkv):
            q, k, v = project(block.attn, y, y.shape[1])
            return Incoming(x, y, k, v, q)
        return Incoming(x, y, *keys_values(block.attn, y))

    def compute(self, block: Any, kept: Tensor, incoming: Incoming, mix: Mix, normed: Tensor | None = None) -> Tensor:
        """Eq. 2 with any tokens for queries: kept (B, n, d) → (B, n, d)."""
        if kept is incoming.x:
            q = queries(block.attn, incoming.y) if incoming.q is None else incoming.q
        else:
            q = queries(block.attn, block.norm1(kept) if normed is None else normed)
        return rest(block, kept, attend(block.attn, q, incoming.k, incoming.v, mix))

    def attend(self, block: Any, x: Tensor, mix: Mix) -> Tensor:
        """Attention and its shortcut, for every token: (B, n, d) → (B, n, d)."""
        attended = attend(block.attn, *project(block.attn, block.norm1(x), x.shape[1]), mix)
        return first_shortcut(block, x, attended)

    def feed(self, block: Any, x: Tensor) -> Tensor:
        """The MLP and its shortcut: (B, n, d) → (B, n, d)."""
        return feed(block, x)

    def first_norm(self, block: Any) -> nn.Module:
        """LN1."""
        return block.norm1  # type: ignore[no-any-return]

    def class_query(self, block: Any, incoming: Incoming) -> ClassQuery:
        """What the first token looks for."""
        q = queries(block.attn, incoming.y[:, :1]) if incoming.q is None else incoming.q[:, :, :1]
        return ClassQuery(q, block.attn.scale)

    def class_attention(self, block: Any, incoming: Incoming, size: Tensor | None) -> Tensor:
        """How the first token attends to all, averaged over heads: (B, n_in), rows sum to 1."""
        q = self.class_query(block, incoming).q
        if kernels_for(incoming.k):
            every = q.new_ones(1, incoming.k.shape[2]) if size is None else size
            rows: Tensor = kernels.class_rows(q, incoming.k, every, block.attn.scale)
            return rows.mean(dim=1)
        return _rows(block.attn, q, incoming.k, size).mean(dim=1)[:, 0]
