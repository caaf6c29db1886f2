"""`merge`: each image merges patches that say the same; how near two are, a distance says that the step owns.

The half of the patches that weigh least beside their nearest may go. The pairs for which weight times distance is least
become one token, at the average length of its members.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from patchslim.hosts import HostInfo, Incoming
from patchslim.kernels.match import LEARNT_FLOOR, learnt_weight, match_lighter, unrounded
from patchslim.kernels.merge import merge_lighter, merge_lighter_by_class
from patchslim.steps.base import Choice, Counted, Reducing, Seen, check_stays, register_step
from patchslim.steps.counting import Work, averaging_macs, class_attention_macs
from patchslim.steps.pairs import join_pairs, lighter_half
from patchslim.steps.tokens import Tokens, merged_tokens, pick

CHANNELS = 32  # of a distance, at most


@register_step
class Merge(Counted):
    """n of each image's own patches; the others join the nearest, or leave where `drop` is set."""

    per_image: ClassVar[bool] = True
    kind: Literal["merge"] = "merge"
    channels: int = Field(ge=1)  # of the distance
    drop: bool = False

    def check(self, entering: int) -> None:
        """At least half stay: each removed patch is one of a pair."""
        super().check(entering)
        check_stays(self.n, entering, half=True)

    @property
    def sizes(self) -> bool:
        """Merged tokens stand for several patches."""
        return not self.drop

    def work(self, info: HostInfo, layer: int, entering: int) -> Work:
        """Features of the distance and all pairs of them, and the average."""
        gone, shape = entering - self.n, info.blocks[layer - 1]
        choice = entering * shape.width * (self.channels + 1) + entering**2 * self.channels
        choice += class_attention_macs(info, shape, entering)
        if not self.drop:
            choice += averaging_macs(shape, entering // 2, gone)  # only every second patch takes any in
        return super().work(info, layer, entering)._replace(choice=choice)

    def module(self, info: HostInfo, layer: int, entering: int) -> nn.Module:
        """Merges, then runs the block."""
        return MergeRunner(self, info, layer)

    def reference(self, seen: Seen) -> Choice:
        """Pairs by plain loops."""
        weights, weighed = seen.weights(seen.incoming()), seen.host.info.reads_class
        prefix = seen.host.info.prefix_tokens
        distance: Any = seen.own.distance
        features = distance(seen.x[0, [prefix + patch for patch in seen.alive]])
        matter = [
            math.exp(float(told)) * ((weight + LEARNT_FLOOR) ** 2 if weighed else 1.0)
            for told, weight in zip(features[:, -1], weights, strict=True)
        ]

        def near(i: int, j: int) -> float:
            return 1 - float((features[i, :-1] - features[j, :-1]).square().sum())

        kept, into = join_pairs(seen.alive, near, matter, len(seen.alive) - self.n, lighter_half(near, matter))
        return Choice(kept, {} if self.drop else into, dict(zip(seen.alive, weights, strict=True)))


def make_distance(width: int, channels: int) -> nn.Linear:
    """An untrained distance: two patches (…, d) are as far apart as the first c channels of what it makes of them,
    (…, c + 1). The last channel is the logarithm of what a patch weighs."""
    return nn.Linear(width, channels + 1).requires_grad_(False)


def distance_channels(info: HostInfo) -> int:
    """How many channels a host gets: comparing all patches should cost no more than comparing keys of one half with
    the other half's would, (c + 1) d + c N ≤ d N / 4."""
    most = (info.patches * info.width // 4 - info.width) // (info.width + info.patches)
    return max(1, min(CHANNELS, most))


class MergeRunner(Reducing):
    """Pairs of least weight times distance become one; what the class token attends to weighs more."""

    part: ClassVar[str] = "distance"  # what it learnt

    def __init__(self, step: Merge, info: HostInfo, layer: int) -> None:
        super().__init__(info.prefix_tokens)
        self.n, self.drop, self.weighed = step.n, step.drop, info.reads_class
        self.distance = make_distance(info.blocks[layer - 1].width, step.channels)

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        patches = state.x[:, self.prefix :].detach()  # nothing learns by a distance
        z: Tensor = unrounded(patches.device, self.distance, patches)
        if self.drop:
            importance = self.class_attention(state, incoming, block) if self.weighed else None
            weight = learnt_weight(z[..., -1], importance)
            return pick(state, match_lighter(z[..., :-1], self.n, weight).keep, self.prefix)
        if self.weighed:
            query, norm = block.math.class_query(block, incoming), block.math.first_norm(block)
            merged = merge_lighter_by_class(
                state.x, state.size, incoming.k, z, self.n, self.prefix, query.q, query.scale, norm
            )
        else:
            merged = merge_lighter(state.x, state.size, z, self.n, self.prefix, None)
        return merged_tokens(state, merged)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"n={self.n}" + (", drop" if self.drop else "")
