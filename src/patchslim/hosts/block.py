"""A transformer block, computed for some of its tokens only: queries from the kept tokens, keys and values from every
token that came in (paper, Eq. 2). The same mathematics serves timm and transformers: their blocks differ in names."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from timm.layers import Mlp
from torch import Tensor, nn

from patchslim.hosts.parts import bare, idle, readable, through
from patchslim.hosts.projections import Projections
from patchslim.kernels.attention import Mix, attention_rows, class_attention, plain
from patchslim.kernels.mlp import gelu_kernel_for, linear_gelu


@dataclass(frozen=True)
class BlockNames:
    """Where a block keeps its parts, and how its attention holds its projections."""

    norm1: str
    attn: str
    norm2: str
    attention: Projections
    mlp: str = "mlp"
    scales: tuple[str, str] | None = None  # LayerScale after attention and after the MLP
    drops: tuple[str, str] | None = None  # stochastic depth or dropout before both shortcuts


class Incoming(NamedTuple):
    """A block's input x and y = LN1(x), (B, n_in, d), its k and v (B, H, n_in, d_h); q where it comes for nothing."""

    x: Tensor
    y: Tensor
    k: Tensor
    v: Tensor
    q: Tensor | None = None


class ClassQuery(NamedTuple):
    """The first token's query to all, q (B, H, 1, d_h), and what products with keys are scaled by."""

    q: Tensor
    scale: float


@dataclass(frozen=True)
class BlockMath:
    """How to compute with the parts of a family's blocks, for some of the tokens. It holds their names only."""

    names: BlockNames

    def run(self, block: nn.Module, x: Tensor, n: int, carry: bool = False) -> Tensor:
        """Queries from the first `n` tokens, keys and values from all (paper, Eq. 2).

        x (B, n_in, d) → (B, n, d); with `carry` the other tokens follow unchanged: (B, n_in, d). Tokens that lie
        first in memory stay so: the kept ones are then one piece of it, and nothing is copied to take them.
        """
        axis = 0 if token_major(x) else 1
        x = x.transpose(0, 1) if axis == 0 else x
        projected = self.names.attention.project(self._attn(block), self.normed(block, x), n, axis)
        attended = self._mixed(block, *projected, plain, axis)
        kept = self.feed(block, self._shortcut(block, x.narrow(axis, 0, n), attended, 0))
        if carry and n < x.shape[axis]:
            kept = torch.cat([kept, x.narrow(axis, n, x.shape[axis] - n)], dim=axis)
        return kept.transpose(0, 1) if axis == 0 else kept

    def read(self, block: nn.Module, x: Tensor) -> Incoming:
        """What a block knows of its input before it computes anything: x (B, n_in, d)."""
        y = self.normed(block, x)
        q, k, v = self.names.attention.read(self._attn(block), y)
        return Incoming(x, y, k, v, q)

    def compute(
        self, block: nn.Module, kept: Tensor, incoming: Incoming, mix: Mix, normed: Tensor | None = None
    ) -> Tensor:
        """Eq. 2 with any tokens for queries: kept (B, n, d) → (B, n, d). `normed` is LN1 of them where it is known."""
        own = kept is incoming.x
        if own and incoming.q is not None:
            q = incoming.q
        else:
            y = incoming.y if own else self.normed(block, kept) if normed is None else normed
            q = self.names.attention.queries(self._attn(block), y)
        return self.feed(block, self._shortcut(block, kept, self._mixed(block, q, incoming.k, incoming.v, mix), 0))

    def attend(self, block: nn.Module, x: Tensor, mix: Mix) -> Tensor:
        """The first half of a block, attention and its shortcut, for every token: (B, n, d) → (B, n, d)."""
        projected = self.names.attention.project(self._attn(block), self.normed(block, x), x.shape[1])
        return self._shortcut(block, x, self._mixed(block, *projected, mix), 0)

    def feed(self, block: nn.Module, x: Tensor) -> Tensor:
        """The second half, MLP and its shortcut: (B, n, d) → (B, n, d)."""
        return self._shortcut(block, x, fed(getattr(block, self.names.mlp), getattr(block, self.names.norm2)(x)), 1)

    def first_norm(self, block: nn.Module) -> nn.Module:
        """LN1."""
        return getattr(block, self.names.norm1)

    def normed(self, block: nn.Module, x: Tensor) -> Tensor:
        """LN1(Z): (B, n, d) → (B, n, d)."""
        return self.first_norm(block)(x)

    def class_query(self, block: nn.Module, incoming: Incoming) -> ClassQuery:
        """What the first token looks for."""
        attn, projections = self._attn(block), self.names.attention
        q = projections.queries(attn, incoming.y[:, :1]) if incoming.q is None else incoming.q[:, :, :1]
        return ClassQuery(q, projections.scale(attn))

    def class_attention(self, block: nn.Module, incoming: Incoming, size: Tensor | None) -> Tensor:
        """How the first token attends to all, averaged over heads: (B, n_in), rows sum to 1."""
        q, scale = self.class_query(block, incoming)
        return class_attention(q, incoming.k, size, scale)

    def attention_map(self, block: nn.Module, x: Tensor, n: int) -> Tensor:
        """P_l^h of the first `n` tokens over all: x (B, n_in, d) → (B, H, n, n_in), in at least fp32."""
        attn, projections = self._attn(block), self.names.attention
        q, k, _ = projections.project(attn, self.normed(block, x), n)
        return attention_rows(q, k, projections.scale(attn))

    def asked(self, block: nn.Module) -> dict[str, Any]:
        """What is asked of every block where the call says nothing."""
        return self.names.attention.asked(self._attn(block))

    def _attn(self, block: nn.Module) -> Any:
        return getattr(block, self.names.attn)

    def _mixed(self, block: nn.Module, q: Tensor, k: Tensor, v: Tensor, mix: Mix, axis: int = 1) -> Tensor:
        """The MSA of Eq. 1: q (B, H, n, d_h), k and v (B, H, n_in, d_h) → (B, n, d), or with axis 0 (n, B, d)."""
        attn, own = self._attn(block), self.names.attention
        mixed = mix(q, k, v, scale=own.scale(attn), dropout=own.dropout(attn), fused=own.fused(attn))
        return own.output(attn, mixed, axis)

    def _shortcut(self, block: nn.Module, x: Tensor, branch: Tensor, which: int) -> Tensor:
        """What attention (0) or the MLP (1) gives, added to its input."""
        for names in (self.names.scales, self.names.drops):
            if names is not None:
                branch = through(getattr(block, names[which]), branch)
        return x + branch


def token_major(x: Tensor) -> bool:
    """Whether tokens (B, n, d) lie in memory as (n, B, d)."""
    return x.stride(0) < x.stride(1)


def fed(mlp: Any, y: Tensor) -> Tensor:
    """The MLP: (B, n, d) → (B, n, d); on a GPU its first layer and GELU in one kernel where they are plain ones."""
    if y.is_cuda and plain_mlp(mlp) and gelu_kernel_for(y, mlp.fc1.weight):
        return mlp.fc2(linear_gelu(y, mlp.fc1.weight, mlp.fc1.bias))
    return mlp(y)


def plain_mlp(mlp: Any) -> bool:
    """Whether a module is two linear layers with an exact GELU in between, as they come."""
    if type(mlp) is not Mlp or type(mlp.act) is not nn.GELU or mlp.act.approximate != "none":
        return False
    unseen = bare(mlp) and bare(mlp.act) and all(map(idle, (mlp.norm, mlp.drop1, mlp.drop2)))
    return unseen and readable(mlp.fc1, nn.Linear) and mlp.fc1.bias is not None
