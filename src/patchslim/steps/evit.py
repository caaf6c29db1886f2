"""`evit`: the patches that the class token attends to most stay, the others fuse into one (Liang et al., ICLR 2022)."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from patchslim.hosts import HostInfo
from patchslim.kernels.match import take
from patchslim.steps.base import Choosing, Halfway, register_step
from patchslim.steps.tokens import Tokens, moved, places


@register_step
class EViT(Choosing):
    """n tokens stay, the fused one among them."""

    takes_sizes: ClassVar[bool] = False
    placed: ClassVar[bool] = False
    halfway: ClassVar[bool] = True
    fewest: ClassVar[int] = 2  # a patch and the fused token
    kind: Literal["evit"] = "evit"

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """The class token's row of attention once more, and the fused token."""
        tokens, shape = info.prefix_tokens + entering, info.blocks[layer - 1]
        return tokens * shape.attention_width + (entering - self.n + 1) * shape.width


def choose(attention: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n most attended patches, most attended first, and the others: (B, t) → (B, n), (B, t - n)."""
    rank = attention.argsort(dim=1, descending=True)
    return rank[:, :n], rank[:, n:]


def fuse(patches: Tensor, attention: Tensor, others: Tensor) -> Tensor:
    """One token out of those that go, weighted by attention (a sum, as the paper has it): (B, t, d) → (B, 1, d)."""
    return take(attention, others)[:, None].to(patches.dtype) @ take(patches, others)


class EViTRunner(Halfway, runs=EViT):
    """The most attentive patches and one fused token."""

    def read(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """The class token's own row of attention, averaged over heads: (B, p + t)."""
        row = q[:, :, :1] * scale @ k.transpose(-2, -1)
        row = row.to(torch.promote_types(row.dtype, torch.float32)).softmax(dim=-1)
        return row[:, :, 0].mean(dim=1)

    def reduce(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """(B, p + t, d) → (B, p + n, d), the fused token last."""
        patches, attention, fused = tokens.x[:, self.prefix :], seen[:, self.prefix :], self.n - 1
        kept, others = choose(attention, fused)
        parts = [tokens.x[:, : self.prefix], take(patches, kept), fuse(patches, attention, others)]
        owner = tokens.owner
        owner = None if owner is None else moved(owner, places(kept, attention.shape[1], others=fused))
        return Tokens(torch.cat(parts, dim=1), owner=owner)
