"""`power`: the n patches that receive the most attention stay (PoWER, Goyal et al., ICML 2020)."""

from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from patchslim.kernels.attention import Mix
from patchslim.steps.base import Choosing, Halfway, register_step
from patchslim.steps.tokens import Tokens, pick


@register_step
class Power(Choosing):
    """The most significant patches stay, the others leave."""

    takes_sizes: ClassVar[bool] = False
    halfway: ClassVar[bool] = True  # reading the map costs additions only
    kind: Literal["power"] = "power"


def significance(maps: Tensor, rows: Tensor | None = None) -> Tensor:
    """The attention that each token receives, over all heads and rows: (B, H, n, n) → (B, n).

    `rows` (B, n) says how much each row counts, where some stand for tokens that are gone.
    """
    if rows is not None:
        maps = maps * rows[:, None, :, None]
    return maps.sum(dim=(1, 2))


class PowerRunner(Halfway, runs=Power):
    """The whole map is read, so attention can't be fused here."""

    def attend(self, attention: Mix, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """Attention with its map at hand, and the significance of every token (B, p + t)."""
        rows = (q * how["scale"] @ k.transpose(-2, -1)).softmax(dim=-1)
        return F.dropout(rows, how["dropout"]) @ v, significance(rows)

    def reduce(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """(B, p + t, d) → (B, p + n, d)."""
        rank = seen[:, self.prefix :].float().argsort(dim=1, descending=True)
        return pick(tokens, rank[:, : self.n], self.prefix)
