"""`cover`: the first n patches of the plan's order stay; each other one joins the kept patch that it resembles most.

Which patches stay is the same for all images. Which patch joins which is decided in the image at hand, by keys: one
product and one maximum. Nothing is sorted or looked up.
"""

from typing import Any, ClassVar, Literal

from patchslim.hosts import HostInfo, Incoming
from patchslim.kernels.match import all_into_first, unit_keys
from patchslim.kernels.merge import merge
from patchslim.steps.base import Choosing, Reducing, averaging_macs, class_attention_macs, register_step
from patchslim.steps.reference import Choice, Seen
from patchslim.steps.tokens import Tokens, merged_tokens


@register_step
class Cover(Choosing):
    """Static patches that the others join."""

    ordered: ClassVar[bool] = True
    sizes: ClassVar[bool] = True
    kind: Literal["cover"] = "cover"

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """Likeness of those that go to those that stay, and the average."""
        gone, shape = entering - self.n, info.blocks[layer - 1]
        likeness = self.n * gone * shape.attention_width + class_attention_macs(info, shape, entering)
        return likeness + averaging_macs(shape, self.n, gone)

    def reference(self, seen: Seen) -> Choice:
        """Every patch that goes joins the most similar one that stays, by the cosine of keys."""
        incoming = seen.incoming()
        keys = dict(zip(seen.alive, unit_keys(incoming.k, seen.host.info.prefix_tokens)[0], strict=True))
        into = {
            patch: max(seen.first, key=lambda other: float(keys[patch] @ keys[other]))
            for patch in set(seen.alive) - set(seen.first)
        }
        return Choice(seen.first, into, seen.weights(incoming))


class CoverRunner(Reducing, runs=Cover):
    """Averages go by the class token's attention where the head reads it, else by size."""

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        importance = self.class_attention(state, incoming, block)
        found = all_into_first(incoming.k, self.n, self.prefix)
        return merged_tokens(state, merge(state.x, state.size, found, self.prefix, importance))
