"""`power`: the n patches that receive the most attention stay (PoWER, Goyal et al., ICML 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.hosts import HostInfo
from patchslim.kernels.attention import Mix
from patchslim.steps.base import Counted, Halfway, check_stays, register_step
from patchslim.steps.counting import Work
from patchslim.steps.tokens import Tokens, pick


@register_step
class Power(Counted):
    """The most significant patches stay, the others leave."""

    per_image: ClassVar[bool] = True
    takes_sizes: ClassVar[bool] = False
    kind: Literal["power"] = "power"

    def check(self, entering: int) -> None:
        """At least one stays."""
        super().check(entering)
        check_stays(self.n, entering, half=False)

    def work(self, info: HostInfo, layer: int, entering: int) -> Work:
        """Every token attends; reading the map costs additions only."""
        tokens = info.prefix_tokens + entering
        return Work(tokens, tokens, info.prefix_tokens + self.n)

    def module(self, info: HostInfo, layer: int, entering: int) -> nn.Module:
        """Chooses between attention and MLP."""
        return PowerRunner(self.n, info.prefix_tokens)


def significance(maps: Tensor, rows: Tensor | None = None) -> Tensor:
    """The attention that each token receives, over all heads and rows: (B, H, n, n) → (B, n).

    `rows` (B, n) says how much each row counts, where some stand for tokens that are gone.
    """
    if rows is not None:
        maps = maps * rows[:, None, :, None]
    return maps.sum(dim=(1, 2))


class PowerRunner(Halfway):
    """The whole map is read, so attention can't be fused here."""

    def __init__(self, n: int, prefix: int) -> None:
        super().__init__(prefix)
        self.n = n

    def mix(self, attention: Mix, seen: list[Tensor]) -> Mix:
        """Attention with its map at hand."""

        def look(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
            rows = (q * scale @ k.transpose(-2, -1)).softmax(dim=-1)
            seen.append(significance(rows))
            return F.dropout(rows, dropout) @ v

        return look

    def reduce(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """(B, p + t, d) → (B, p + n, d)."""
        rank = seen[:, self.prefix :].float().argsort(dim=1, descending=True)
        return pick(tokens, rank[:, : self.n], self.prefix)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"n={self.n}"
