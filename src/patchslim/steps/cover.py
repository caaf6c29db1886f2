"""`cover`: the first n patches of the plan's order stay; each other one joins the kept patch that it resembles most.

Which patches stay is the same for all images. Which patch joins which is decided in the image at hand, by keys: one
product and one maximum. Nothing is sorted or looked up.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import nn

from patchslim.hosts import HostInfo, Incoming
from patchslim.kernels.match import unit_keys
from patchslim.kernels.merge import merge_into_first
from patchslim.steps.base import Choice, Counted, Reducing, Seen, check_stays, register_step
from patchslim.steps.counting import Work, averaging_macs, class_attention_macs
from patchslim.steps.tokens import Tokens, merged_tokens


@register_step
class Cover(Counted):
    """Static patches that the others join."""

    ordered: ClassVar[bool] = True
    per_image: ClassVar[bool] = True
    kind: Literal["cover"] = "cover"

    def check(self, entering: int) -> None:
        """At least one stays."""
        super().check(entering)
        check_stays(self.n, entering, half=False)

    @property
    def sizes(self) -> bool:
        """Merged tokens stand for several patches."""
        return True

    def work(self, info: HostInfo, layer: int, entering: int) -> Work:
        """Likeness of those that go to those that stay, and the average."""
        gone, shape = entering - self.n, info.blocks[layer - 1]
        choice = self.n * gone * shape.attention_width + class_attention_macs(info, shape, entering)
        choice += averaging_macs(shape, self.n, gone)
        return super().work(info, layer, entering)._replace(choice=choice)

    def module(self, info: HostInfo, layer: int, entering: int) -> nn.Module:
        """Merges, then runs the block."""
        return CoverRunner(self.n, info.prefix_tokens, info.reads_class)

    def reference(self, seen: Seen) -> Choice:
        """Every patch that goes joins the most similar one that stays, by the cosine of keys."""
        incoming = seen.incoming()
        keys = unit_keys(incoming.k, seen.host.info.prefix_tokens)[0]
        place = {patch: index for index, patch in enumerate(seen.alive)}
        into = {
            patch: max(seen.first, key=lambda other: float(keys[place[patch]] @ keys[place[other]]))
            for patch in set(seen.alive) - set(seen.first)
        }
        return Choice(seen.first, into, dict(zip(seen.alive, seen.weights(incoming), strict=True)))


class CoverRunner(Reducing):
    """Averages go by the class token's attention where the head reads it, else by size."""

    def __init__(self, n: int, prefix: int, weighed: bool) -> None:
        super().__init__(prefix)
        self.n, self.weighed = n, weighed

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        importance = self.class_attention(state, incoming, block) if self.weighed else None
        merged = merge_into_first(state.x, state.size, incoming.k, self.n, self.prefix, importance)
        return merged_tokens(state, merged)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"n={self.n}"
