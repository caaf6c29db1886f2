"""`carry`: the first n patches of the plan's order are computed, the others keep their last value and are still read.

This is the paper's Eq. 2 to the letter, and its FLOPs formula.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import nn

from patchslim.hosts import HostInfo
from patchslim.steps.base import Choice, Counted, Seen, register_step
from patchslim.steps.counting import Work
from patchslim.steps.tokens import Tokens


@register_step
class Carry(Counted):
    """Patches that are not computed stay as keys and values of every later block."""

    ordered: ClassVar[bool] = True
    takes_sizes: ClassVar[bool] = False
    kind: Literal["carry"] = "carry"

    def leaving(self, entering: int) -> int:
        """All: none leaves the network."""
        return entering

    def work(self, info: HostInfo, layer: int, entering: int) -> Work:
        """Keys and values of all patches."""
        n = info.prefix_tokens + self.n
        return Work(info.prefix_tokens + entering, n, n)

    def module(self, info: HostInfo, layer: int, entering: int) -> nn.Module:
        """Computes the first rows and leaves the others as they are."""
        return CarryRunner(info.prefix_tokens + self.n)

    def reference(self, seen: Seen) -> Choice:
        """The plan's own patches are computed; the others stay."""
        return Choice(seen.first, stays=True)


class CarryRunner(nn.Module):
    """Queries from the first `tokens` tokens; the others follow unchanged."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, state: Tokens, block: Any) -> Tokens:
        """(B, p + N, …) → the same."""
        return state._replace(x=block.math.run(block, state.x, self.tokens, carry=True))
