"""What a step decides for one image at full shape, in plain loops: the masked reference goes by it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from patchslim.hosts import Host, Incoming
from patchslim.kernels.match import TINY


class Choice(NamedTuple):
    """What a step decides for one image."""

    kept: list[int]  # input patches that are computed, in the order of the slim model's tokens
    into: Mapping[int, int] = {}  # patch that goes → patch that it joins
    weight: Mapping[int, float] = {}  # how much each counts in an average
    stays: bool = False  # whether the others stay to be read


@dataclass(frozen=True)
class Seen:
    """What a step sees of one image (or of a batch that all go the same way), at full shape."""

    host: Host
    layer: int  # from 1
    x: Tensor  # (B, p + N, d), every patch in its own place
    alive: list[int]  # patches that are still there, in the order of the slim model's tokens
    size: list[float]  # of every input patch
    own: nn.Module  # what the step owns
    first: list[int]  # the plan's patches for this block, where it has an order

    def incoming(self) -> Incoming:
        """What the block reads of the living patches."""
        prefix, block = self.host.info.prefix_tokens, self.host.blocks[self.layer - 1]
        return self.host.math.read(block, self.x[:, [*range(prefix), *(prefix + patch for patch in self.alive)]])

    def weights(self, incoming: Incoming) -> dict[int, float]:
        """How much each living patch counts: by class attention, mean 1, where a class token is read, else by size."""
        weights, prefix = [self.size[patch] for patch in self.alive], self.host.info.prefix_tokens
        if self.host.info.reads_class:
            every, block = self.x.new_tensor([[1.0] * prefix + weights]), self.host.blocks[self.layer - 1]
            attention = self.host.math.class_attention(block, incoming, every)[0, prefix:] * len(self.alive)
            weights = attention.tolist()
        return dict(zip(self.alive, weights, strict=True))


def join_in_rounds(
    alive: Sequence[int], features: Tensor, weight: Sequence[float], r: int
) -> tuple[list[int], dict[int, int]]:
    """(patches that stay, patch that goes → patch it joins), of features (t, c).

    Half of r go, then the other half: each time those of least weight times squared distance to the nearest heavier
    one, which takes on their weight. Then each joins the nearest that stays. All but `alive` go by places in it.
    """
    mine, order = list(weight), sorted(range(len(alive)), key=lambda i: -weight[i])  # stable: the first are heavier
    stay = set(order)

    def far(i: int, j: int) -> float:
        return float((features[i] - features[j]).square().sum())

    for count in ((r + 1) // 2, r // 2):
        heavier = {i: [j for j in order[: order.index(i)] if j in stay] for i in stay}
        nearest = {i: min(others, key=lambda j: far(i, j)) for i, others in heavier.items() if others}
        go = sorted(nearest, key=lambda i: mine[i] * max(far(i, nearest[i]), TINY))[:count]
        for i in go:
            mine[nearest[i]] += weight[i]
        stay -= set(go)
    into = {alive[i]: alive[min(sorted(stay), key=lambda j: far(i, j))] for i in order if i not in stay}
    return [alive[i] for i in sorted(stay)], into
