"""`threshold`: patches that G scores above t stay, so images keep different numbers and the batch runs packed."""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from patchslim.hosts import HostInfo, Incoming
from patchslim.steps.base import WIDEST, Choosing, Reducing, register_step
from patchslim.steps.packed import Packed, grid
from patchslim.steps.reference import Choice, Seen
from patchslim.steps.selector import SelectorKind, make_selector, selector_macs, told


@register_step
class Threshold(Choosing):
    """Patches with log ŝ above `above`, and at least the best `least` of every image; n on average.

    Without `above` exactly the best `least` stay: where the head reads patches, all images have to end alike.
    """

    rectangular: ClassVar[bool] = False
    kind: Literal["threshold"] = "threshold"
    above: float | None = Field(default=None, allow_inf_nan=False)
    least: int = Field(default=1, ge=1)
    selector: SelectorKind = "mlp"
    hidden: int = Field(default=0, ge=0, le=WIDEST)

    def bounds(self, least: int, most: int) -> tuple[int, int]:
        """An image may keep all it has, unless only the best are asked for."""
        return min(self.least, least), most if self.above is not None else min(self.least, most)

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """G runs where there is a choice, also for an image that turns out to keep all it has."""
        return selector_macs(info, self.selector, self.hidden, entering) if entering > self.least else 0

    def reference(self, seen: Seen) -> Choice:
        """Those past the threshold, and at least the best few."""
        score = told(seen, seen.incoming())
        best = sorted(score, key=lambda patch: -score[patch])[: self.least]
        past = [] if self.above is None else [patch for patch in score if score[patch] > self.above]
        return Choice(sorted({*past, *best}))


class ThresholdRunner(Reducing, runs=Threshold):
    """Which tokens stay is decided on a grid of images by patches."""

    part = "selector"

    def __init__(self, step: Threshold, info: HostInfo, layer: int, entering: int) -> None:
        super().__init__(step, info, layer, entering)
        self.above = float("inf") if step.above is None else step.above
        self.least = step.least
        self.selector = make_selector(info, step.selector, step.hidden)

    def reduce(self, state: Packed, incoming: Incoming, block: Any) -> Packed:
        """(1, T_in, d) → (1, T, d)."""
        if max(state.lengths, default=0) - self.prefix <= self.least:
            return state  # no image has more than it keeps anyway
        score = self.scores(state, incoming.y)
        best = score.topk(self.least, dim=1).indices
        stay = (score > self.above).scatter(1, best, True) & score.isfinite()  # an image may have fewer than the least
        return state.keeping(stay, self.prefix)

    def scores(self, state: Packed, y: Tensor) -> Tensor:
        """log ŝ of all patches that come in, -inf where an image has fewer: y (1, T, d) → (B, t)."""
        index, real = grid(state.lengths, y.device, self.prefix)
        place = torch.where(real, state.place[index], state.patches)
        score: Tensor = self.selector(y[0][index], place)
        return score.float().masked_fill(~real, -torch.inf)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"above={self.above:g}, least={self.least}"
