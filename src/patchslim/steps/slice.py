"""`slice`: the first n patches of the plan's order stay, the others leave the network.

Patches are sorted once, at the entrance, by how long they stay. So every block's kept set is a prefix, and slimming is
a slice: no index tensor in the graph, nothing for a compiler or an exporter to trip over.
"""

from typing import Any, ClassVar, Literal

from patchslim.hosts import Incoming
from patchslim.steps.base import Counted, Reducing, register_step
from patchslim.steps.reference import Choice, Seen
from patchslim.steps.tokens import Tokens, first


@register_step
class Slice(Counted):
    """Static drop. With n = 0 only prefix tokens are computed, whatever came before."""

    ordered: ClassVar[bool] = True
    kind: Literal["slice"] = "slice"

    @property
    def packs(self) -> bool:
        """To the prefix every batch can be cut."""
        return self.n == 0

    def reference(self, seen: Seen) -> Choice:
        """The plan's own patches."""
        return Choice(seen.first)


class SliceRunner(Reducing, runs=Slice):
    """Queries from the first tokens, keys and values from all (paper, Eq. 2)."""

    def forward(self, state: Any, block: Any) -> Any:
        """(B, p + t, …) → (B, p + n, …)."""
        if not isinstance(state, Tokens) or state.size is not None:
            return super().forward(state, block)
        kept = first(state, self.n, self.prefix)
        return kept._replace(x=block.math.run(block, state.x, self.prefix + self.n))

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Any:
        """The first tokens; of a packed batch only the prefix can be asked for."""
        if isinstance(state, Tokens):
            return first(state, self.n, self.prefix)
        return state.only_prefix(self.prefix)
