"""`evit`: the patches that the class token attends to most stay, the others fuse into one (Liang et al., ICLR 2022)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from patchslim.hosts import HostInfo
from patchslim.kernels.attention import Mix
from patchslim.kernels.match import take
from patchslim.steps.base import Counted, Halfway, check_stays, register_step
from patchslim.steps.counting import Work
from patchslim.steps.tokens import Tokens, moved


@register_step
class EViT(Counted):
    """n tokens stay, the fused one among them."""

    per_image: ClassVar[bool] = True
    takes_sizes: ClassVar[bool] = False
    placed: ClassVar[bool] = False
    kind: Literal["evit"] = "evit"

    def check(self, entering: int) -> None:
        """At least one patch and the fused token."""
        super().check(entering)
        check_stays(self.n - 1, entering, half=False)

    def work(self, info: HostInfo, layer: int, entering: int) -> Work:
        """The class token's row of attention once more, and the fused token."""
        tokens, n, shape = info.prefix_tokens + entering, info.prefix_tokens + self.n, info.blocks[layer - 1]
        return Work(tokens, tokens, n, tokens * shape.attention_width + (tokens - n + 1) * shape.width)

    def module(self, info: HostInfo, layer: int, entering: int) -> nn.Module:
        """Chooses between attention and MLP."""
        return EViTRunner(self.n - 1, info.prefix_tokens)


def choose(attention: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n most attended patches, most attended first, and the others: (B, t) → (B, n), (B, t - n)."""
    rank = attention.argsort(dim=1, descending=True)
    return rank[:, :n], rank[:, n:]


def fuse(patches: Tensor, attention: Tensor, others: Tensor) -> Tensor:
    """One token out of those that go, weighted by attention (a sum, as the paper has it): (B, t, d) → (B, 1, d)."""
    return take(attention, others)[:, None].to(patches.dtype) @ take(patches, others)


class EViTRunner(Halfway):
    """The attentive patches and one fused token."""

    def __init__(self, n: int, prefix: int) -> None:
        """n: patches kept, the fused one not counted."""
        super().__init__(prefix)
        self.n = n

    def mix(self, attention: Mix, seen: list[Tensor]) -> Mix:
        """Fused attention for all, and the class token's own row, averaged over heads: (B, p + t)."""

        def look(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
            row = q[:, :, :1] * scale @ k.transpose(-2, -1)
            row = row.to(torch.promote_types(row.dtype, torch.float32)).softmax(dim=-1)
            seen.append(row[:, :, 0].mean(dim=1))
            return attention(q, k, v, scale=scale, dropout=dropout, fused=fused)

        return look

    def reduce(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """(B, p + t, d) → (B, p + n + 1, d), the fused token last."""
        patches, attention = tokens.x[:, self.prefix :], seen[:, self.prefix :]
        kept, others = choose(attention, self.n)
        parts = [tokens.x[:, : self.prefix], take(patches, kept), fuse(patches, attention, others)]
        owner = tokens.owner
        if owner is not None:
            fused = torch.full(attention.shape, self.n, device=kept.device)
            owner = moved(owner, fused.scatter(1, kept, torch.arange(self.n, device=kept.device).expand_as(kept)))
        return Tokens(torch.cat(parts, dim=1), owner=owner)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"n={self.n}"
