"""`cover`: the first n patches of the plan's order stay; each other one joins the nearest of them.

Which patches stay is the same for all images. Which patch joins which is decided in the image at hand, by a distance
that the step owns: one product and one minimum. Nothing is sorted.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field

from patchslim.hosts import HostInfo, Incoming
from patchslim.kernels.merge import merge
from patchslim.steps.base import WIDEST, Choosing, register_step
from patchslim.steps.merge import Distant, distance_macs, told
from patchslim.steps.reference import Choice, Seen
from patchslim.steps.tokens import Tokens, merged_tokens


@register_step
class Cover(Choosing):
    """Static patches that the others join."""

    ordered: ClassVar[bool] = True
    sizes: ClassVar[bool] = True
    kind: Literal["cover"] = "cover"
    channels: int = Field(ge=1, le=WIDEST)  # of the distance

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """Features of the distance, and pairs of one that goes and one that stays."""
        pairs = self.n * (entering - self.n) * self.channels
        return distance_macs(info, layer, entering, self.channels) + pairs

    def reference(self, seen: Seen) -> Choice:
        """Every patch that goes joins the nearest one that stays."""
        features, weights = told(seen)
        row = dict(zip(seen.alive, features, strict=True))
        into = {
            patch: min(seen.first, key=lambda other: float((row[patch] - row[other]).square().sum()))
            for patch in set(seen.alive) - set(seen.first)
        }
        return Choice(seen.first, into, weights)


class CoverRunner(Distant, runs=Cover):
    """Averages go by what the distance says that patches weigh."""

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        found, weight = self.chosen(state, first=True)
        return merged_tokens(state, merge(state.x, state.size, found, self.prefix, weight, self.norm(block)))
