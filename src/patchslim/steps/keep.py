"""`keep`: the block computes everything that comes in."""

from typing import Any, ClassVar, Literal

from patchslim.steps.base import Runner, Step, register_step
from patchslim.steps.reference import Choice, Seen
from patchslim.steps.tokens import Tokens


@register_step
class Keep(Step):
    """Nothing is removed."""

    packs: ClassVar[bool] = True
    kind: Literal["keep"] = "keep"

    def reference(self, seen: Seen) -> Choice:
        """All that are there."""
        return Choice(seen.alive)


class KeepRunner(Runner, runs=Keep):
    """Runs the whole block on every token of any state."""

    def forward(self, state: Any, block: Any) -> Any:
        """(B, p + n, …) → the same."""
        math = block.math
        if not isinstance(state, Tokens):
            return state._replace(x=math.compute(block, state.x, math.read(block, state.x), state.mix(state)))
        if state.size is None:
            return state._replace(x=math.run(block, state.x, state.x.shape[1]))
        return state._replace(x=math.feed(block, math.attend(block, state.x, state.mix(state))))
