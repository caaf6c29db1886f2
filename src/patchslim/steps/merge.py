"""`merge`: each image merges patches that say the same; how near two are, a distance says that the step owns.

The half of the patches that weigh least beside their nearest may go. The pairs for which weight times distance is least
become one token, at the average length of its members.
"""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from patchslim.hosts import HostInfo, Incoming
from patchslim.hosts.parts import bare
from patchslim.kernels.match import LEARNT_FLOOR, learnt_weight, match_lighter, pairs_by_distance, unrounded
from patchslim.kernels.merge import merge
from patchslim.steps.base import WIDEST, Choosing, Reducing, averaging_macs, class_attention_macs, register_step
from patchslim.steps.reference import Choice, Seen, join_pairs, lighter_half
from patchslim.steps.tokens import Tokens, merged_tokens, pick

CHANNELS = 32  # of a distance, at most


@register_step
class Merge(Choosing):
    """n of each image's own patches; the others join the nearest, or leave where `drop` is set."""

    pairs: ClassVar[bool] = True
    kind: Literal["merge"] = "merge"
    channels: int = Field(ge=1, le=WIDEST)  # of the distance
    drop: bool = False

    @property
    def sizes(self) -> bool:
        """Merged tokens stand for several patches."""
        return not self.drop

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """Features of the distance and all pairs of them, and the average."""
        shape = info.blocks[layer - 1]
        choice = entering * shape.width * (self.channels + 1) + entering**2 * self.channels
        choice += class_attention_macs(info, shape, entering)
        if not self.drop:
            choice += averaging_macs(shape, entering // 2, entering - self.n)  # only every second patch takes any in
        return choice

    def reference(self, seen: Seen) -> Choice:
        """Pairs by plain loops."""
        info, weights = seen.host.info, seen.weights(seen.incoming())
        distance: Any = seen.own.distance
        features = distance(seen.x[0, [info.prefix_tokens + patch for patch in seen.alive]])
        matter = [
            math.exp(float(told)) * ((weight + LEARNT_FLOOR) ** 2 if info.reads_class else 1.0)
            for told, weight in zip(features[:, -1], weights.values(), strict=True)
        ]

        def near(i: int, j: int) -> float:
            return 1 - float((features[i, :-1] - features[j, :-1]).square().sum())

        kept, into = join_pairs(seen.alive, near, matter, len(seen.alive) - self.n, lighter_half(near, matter))
        return Choice(kept, {} if self.drop else into, weights)


def make_distance(width: int, channels: int) -> nn.Linear:
    """An untrained distance: two patches (…, d) are as far apart as the first c channels of what it makes of them,
    (…, c + 1). The last channel is the logarithm of what a patch weighs."""
    return nn.Linear(width, channels + 1).requires_grad_(False)


def distance_channels(info: HostInfo) -> int:
    """How many channels a host gets: comparing all patches should cost no more than comparing keys of one half with
    the other half's would, (c + 1) d + c N ≤ d N / 4."""
    most = (info.patches * info.width // 4 - info.width) // (info.width + info.patches)
    return max(1, min(CHANNELS, most))


class MergeRunner(Reducing, runs=Merge):
    """Pairs of least weight times distance become one; what the class token attends to weighs more."""

    part = "distance"

    def __init__(self, step: Merge, info: HostInfo, layer: int, entering: int) -> None:
        super().__init__(step, info, layer, entering)
        self.drop = step.drop
        self.distance = make_distance(info.blocks[layer - 1].width, step.channels)

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        patches = state.x[:, self.prefix :].detach()  # nothing learns by a distance
        z: Tensor = unrounded(patches.device, self.distance, patches)
        if self.drop:
            weight = learnt_weight(z[..., -1], self.class_attention(state, incoming, block))
            return pick(state, match_lighter(z[..., :-1], self.n, weight).keep, self.prefix)
        query, norm = None, None
        if self.reads_class:
            query, first = block.math.class_query(block, incoming), block.math.first_norm(block)
            norm = first if bare(first) else None  # what hooks it has is called
        found, importance = pairs_by_distance(z, self.n, incoming.k, state.size, query)
        return merged_tokens(state, merge(state.x, state.size, found, self.prefix, importance, norm))

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return super().extra_repr() + (", drop" if self.drop else "")
