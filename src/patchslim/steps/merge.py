"""`merge`: each image merges patches that say the same; how near two are, a distance says that the step owns.

Those whose going costs least join the nearest that stay, and become one token with them, at the average length of its
members. More than half of the patches may go at once.
"""

from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from patchslim.hosts import HostInfo, Incoming
from patchslim.kernels.match import Match, chosen, unrounded, weigh
from patchslim.kernels.merge import merge
from patchslim.steps.base import WIDEST, Choosing, Reducing, register_step
from patchslim.steps.reference import Choice, Seen, join_in_rounds
from patchslim.steps.tokens import Tokens, merged_tokens, pick

CHANNELS = 31  # of a distance, at most; with the weight's they are as many as products like


@register_step
class Merge(Choosing):
    """n of each image's own patches; the others join the nearest, or leave where `drop` is set."""

    kind: Literal["merge"] = "merge"
    channels: int = Field(ge=1, le=WIDEST)  # of the distance
    drop: bool = False

    @property
    def sizes(self) -> bool:
        """Merged tokens stand for several patches."""
        return not self.drop

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """Features of the distance, all pairs of them, and again those of one that goes and one that stays."""
        pairs = entering**2 + self.n * (entering - self.n)
        return distance_macs(info, layer, entering, self.channels) + pairs * self.channels

    def reference(self, seen: Seen) -> Choice:
        """The same by plain loops."""
        features, weights = told(seen)
        kept, into = join_in_rounds(seen.alive, features, list(weights.values()), len(seen.alive) - self.n)
        return Choice(kept, {} if self.drop else into, weights)


def make_distance(width: int, channels: int) -> nn.Linear:
    """An untrained distance: two patches (…, d) are as far apart as the first c channels of what it makes of them,
    (…, c + 1). The last channel is the logarithm of what a patch weighs."""
    return nn.Linear(width, channels + 1).requires_grad_(False)


def distance_channels(info: HostInfo) -> int:
    """How many channels a host gets: features and all pairs of them should cost no more than a quarter of all pairs of
    keys, (c + 1) d + c N ≤ d N / 4."""
    most = (info.patches * info.width // 4 - info.width) // (info.width + info.patches)
    return max(1, min(CHANNELS, most))


def distance_macs(info: HostInfo, layer: int, entering: int, channels: int) -> int:
    """MACs of the features and weights of all tokens that enter a block, prefix included."""
    return (info.prefix_tokens + entering) * info.blocks[layer - 1].width * (channels + 1)


def told(seen: Seen) -> tuple[Tensor, dict[int, float]]:
    """What a step's own distance says of the living patches of one image: features (t, c) and weights by patch."""
    distance: Any = seen.own.distance
    every = distance(seen.x[0, [seen.host.info.prefix_tokens + patch for patch in seen.alive]])
    weight = weigh(every[:, -1], every.new_tensor([seen.size[patch] for patch in seen.alive]))
    return every[:, :-1], dict(zip(seen.alive, weight.tolist(), strict=True))


class Distant(Reducing):
    """Runs a step that owns a distance."""

    part = "distance"

    def __init__(self, step: Any, info: HostInfo, layer: int, entering: int) -> None:
        super().__init__(step, info, layer, entering)
        self.distance = make_distance(info.blocks[layer - 1].width, step.channels)

    def chosen(self, state: Tokens, first: bool = False) -> tuple[Match, Tensor]:
        """Which patches stay, `first` or any, and what all of them weigh (B, t)."""
        x = state.x.detach()  # nothing learns by a distance
        z: Tensor = unrounded(x.device, self.distance, x)
        size = None if state.size is None else state.size[:, self.prefix :]
        return chosen(z[:, self.prefix :], size, self.n, first)


class MergeRunner(Distant, runs=Merge):
    """Averages go by the same weights as the choice."""

    def __init__(self, step: Merge, info: HostInfo, layer: int, entering: int) -> None:
        super().__init__(step, info, layer, entering)
        self.drop = step.drop

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        found, weight = self.chosen(state)
        if self.drop:
            return pick(state, found.keep, self.prefix)
        return merged_tokens(state, merge(state.x, state.size, found, self.prefix, weight, self.norm(block)))

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return super().extra_repr() + (", drop" if self.drop else "")
