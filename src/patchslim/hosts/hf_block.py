"""A layer of a transformers model, computed for some of its tokens only: queries, keys and values are layers of their
own there, so that each runs on the tokens it is for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from patchslim.hosts.attention import Mix, plain
from patchslim.hosts.base import ClassQuery, Incoming
from patchslim.hosts.fast import KERNELS, kernels_for
from patchslim.hosts.hf_parts import BlockNames
from patchslim.hosts.timm_block import through, token_major

if KERNELS:
    from patchslim.hosts import kernels


class HFBlockMath:
    """How slim blocks compute with the parts of such a layer. It holds nothing but their names."""

    def __init__(self, names: BlockNames) -> None:
        self.names = names

    def run(self, block: Any, x: Tensor, n: int, carry: bool = False) -> Tensor:
        """Queries from the first `n` tokens, keys and values from all: x (B, n_in, d) → (B, n, d), or, with the others
        carried along, (B, n_in, d). Tokens that lie first in memory stay so."""
        axis = 0 if token_major(x) else 1
        x = x.transpose(0, 1) if axis == 0 else x
        y, kept = self.normed(block, x), x.narrow(axis, 0, n)
        attended = self._attended(block, y.narrow(axis, 0, n), *self._keys_values(block, y, axis), plain, axis)
        kept = self.feed(block, self._shortcut(block, kept, attended, 0))
        if carry and n < x.shape[axis]:
            kept = torch.cat([kept, x.narrow(axis, n, x.shape[axis] - n)], dim=axis)
        return kept.transpose(0, 1) if axis == 0 else kept

    def read(self, block: Any, x: Tensor) -> Incoming:
        """What the block knows of its input before it computes anything: x (B, n_in, d)."""
        y = self.normed(block, x)
        return Incoming(x, y, *self._keys_values(block, y))

    def compute(self, block: Any, kept: Tensor, incoming: Incoming, mix: Mix, normed: Tensor | None = None) -> Tensor:
        """Any tokens for queries: kept (B, n, d) → (B, n, d)."""
        y = incoming.y if kept is incoming.x else self.normed(block, kept) if normed is None else normed
        attended = self._attended(block, y, incoming.k, incoming.v, mix)
        return self.feed(block, self._shortcut(block, kept, attended, 0))

    def attend(self, block: Any, x: Tensor, mix: Mix) -> Tensor:
        """Attention and its shortcut, for every token: (B, n, d) → (B, n, d)."""
        y = self.normed(block, x)
        return self._shortcut(block, x, self._attended(block, y, *self._keys_values(block, y), mix), 0)

    def feed(self, block: Any, x: Tensor) -> Tensor:
        """The MLP and its shortcut: (B, n, d) → (B, n, d)."""
        return self._shortcut(block, x, block.mlp(getattr(block, self.names.norm2)(x)), 1)

    def first_norm(self, block: Any) -> nn.Module:
        """LN1."""
        return getattr(block, self.names.norm1)  # type: ignore[no-any-return]

    def class_query(self, block: Any, incoming: Incoming) -> ClassQuery:
        """What the first token looks for."""
        return ClassQuery(self._queries(block, incoming.y[:, :1]), self._scale(block))

    def class_attention(self, block: Any, incoming: Incoming, size: Tensor | None) -> Tensor:
        """How the first token attends to all, averaged over heads: (B, n_in), rows sum to 1."""
        q, k = self.class_query(block, incoming).q, incoming.k
        if kernels_for(k):
            every = q.new_ones(1, k.shape[2]) if size is None else size
            rows: Tensor = kernels.class_rows(q, k, every, self._scale(block))
            return rows.mean(dim=1)
        return self._rows(block, q, k, size).mean(dim=1)[:, 0]

    def attention_map(self, block: Any, x: Tensor, n: int) -> Tensor:
        """P_l^h of the first `n` tokens over all: x (B, n_in, d) → (B, H, n, n_in), in at least fp32."""
        y = self.normed(block, x)
        return self._rows(block, self._queries(block, y[:, :n]), self._keys_values(block, y)[0])

    def normed(self, block: Any, x: Tensor) -> Tensor:
        """LN1(Z): (B, n, d) → (B, n, d)."""
        return self.first_norm(block)(x)  # type: ignore[no-any-return]

    def _attn(self, block: Any) -> Any:
        return getattr(block, self.names.attn)

    def _scale(self, block: Any) -> float:
        return getattr(self._attn(block), self.names.scale)  # type: ignore[no-any-return]

    def _queries(self, block: Any, y: Tensor, axis: int = 1) -> Tensor:
        """y (B, n, d) or, with tokens along axis 0, (n, B, d) → (B, H, n, d_h)."""
        return self._heads(block, self._attn(block).q_proj(y), axis)

    def _keys_values(self, block: Any, y: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
        """y (B, n_in, d) or, with tokens along axis 0, (n_in, B, d) → k and v (B, H, n_in, d_h)."""
        attn = self._attn(block)
        return self._heads(block, attn.k_proj(y), axis), self._heads(block, attn.v_proj(y), axis)

    def _heads(self, block: Any, projected: Tensor, axis: int) -> Tensor:
        """(B, n, H · d_h) or, with tokens along axis 0, (n, B, H · d_h) → (B, H, n, d_h), a view."""
        split: Tensor = projected.unflatten(-1, (getattr(self._attn(block), self.names.heads), -1))
        return split.permute(1, 2, 0, 3) if axis == 0 else split.transpose(1, 2)

    def _attended(self, block: Any, y: Tensor, k: Tensor, v: Tensor, mix: Mix, axis: int = 1) -> Tensor:
        """The MSA of Eq. 1: y (B, n, d), k and v (B, H, n_in, d_h) → (B, n, d); with tokens along axis 0, (n, B, d)."""
        attn = self._attn(block)
        dropout = getattr(attn, self.names.dropout) if attn.training else 0.0
        fused = attn.config._attn_implementation != "eager"
        out = mix(self._queries(block, y, axis), k, v, scale=self._scale(block), dropout=dropout, fused=fused)
        out = (out.permute(2, 0, 1, 3) if axis == 0 else out.transpose(1, 2)).flatten(2)
        return getattr(attn, self.names.out)(out)  # type: ignore[no-any-return]

    def _shortcut(self, block: Any, x: Tensor, branch: Tensor, which: int) -> Tensor:
        """What attention (0) or the MLP (1) gives, added to its input."""
        if self.names.scales is not None:
            branch = getattr(block, self.names.scales[which])(branch)
        drop: nn.Module | None = None if self.names.drop is None else getattr(block, self.names.drop)
        return x + (branch if drop is None else through(drop, branch))

    def _rows(self, block: Any, q: Tensor, k: Tensor, size: Tensor | None = None) -> Tensor:
        """Softmax rows of some queries: (B, H, n, d_h), (B, H, n_in, d_h) → (B, H, n, n_in), in at least fp32."""
        logits = q * self._scale(block) @ k.transpose(-2, -1)
        if size is not None:
            logits = logits + size.log()[:, None, None, :]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(dim=-1)
