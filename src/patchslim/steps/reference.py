"""What a step decides for one image at full shape, in plain loops: the masked reference goes by it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from patchslim.hosts import Host, Incoming
from patchslim.kernels.match import TINY

Likeness = Callable[[int, int], float]  # of two patches, by their places
Halves = tuple[Sequence[int], Sequence[int]]  # places of patches that may join, and of those that they may join


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


def join_pairs(
    alive: Sequence[int], near: Likeness, weight: Sequence[float], r: int, halves: Halves | None = None
) -> tuple[list[int], dict[int, int]]:
    """(patches that stay, patch that goes → patch it joins).

    Every patch of one half, the even ones unless told, looks for its nearest among the others. The r pairs of least
    weight times distance become one. All but `alive` go by places in it.
    """
    movers, others = halves or (range(0, len(alive), 2), range(1, len(alive), 2))
    nearest = {i: max(others, key=lambda j: near(i, j)) for i in movers}
    cost = {i: weight[i] * max(1 - near(i, nearest[i]), TINY) for i in movers}
    ranked = sorted(movers, key=lambda i: cost[i])
    into = {alive[i]: alive[nearest[i]] for i in ranked[:r]}
    return [alive[i] for i in [*ranked[r:], *others]], into


def lighter_half(near: Likeness, weight: Sequence[float]) -> tuple[list[int], list[int]]:
    """The half of the patches that weigh least beside the one nearest to them, and the others."""
    every = range(len(weight))
    nearest = [max((j for j in every if j != i), key=lambda j: near(i, j)) for i in every]
    order = sorted(every, key=lambda i: weight[i] / weight[nearest[i]])
    half = (len(weight) + 1) // 2
    return order[:half], order[half:]
