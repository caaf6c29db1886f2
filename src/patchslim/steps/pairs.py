"""Pairs of patches by plain loops: what the masked references of merging steps go by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from patchslim.kernels.match import TINY

Likeness = Callable[[int, int], float]  # of two patches, by their places


def join_pairs(
    alive: Sequence[int],
    near: Likeness,
    weight: Sequence[float],
    r: int,
    halves: tuple[Sequence[int], Sequence[int]] | None = None,
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
