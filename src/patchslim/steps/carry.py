"""`carry`: the first n patches of the plan's order are computed, the others keep their last value and are still read.

This is the paper's Eq. 2 to the letter, and its FLOPs formula.
"""

from typing import Any, ClassVar, Literal

from patchslim.steps.base import Counted, Runner, register_step
from patchslim.steps.reference import Choice, Seen
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

    def reference(self, seen: Seen) -> Choice:
        """The plan's own patches are computed; the others stay."""
        return Choice(seen.first, stays=True)


class CarryRunner(Runner, runs=Carry):
    """Queries from the prefix and the first patches; the others follow unchanged."""

    def forward(self, state: Tokens, block: Any) -> Tokens:
        """(B, p + N, …) → the same."""
        return state._replace(x=block.math.run(block, state.x, self.prefix + self.n, carry=True))
