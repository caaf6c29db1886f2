"""From a MAC ratio to a method's own knob."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from patchslim.hosts import HostInfo
from patchslim.peers.method import Job, Unreachable

Knob = TypeVar("Knob")
RATES = 10_000  # steps of a keep rate between everything and nothing


def first_fitting(knobs: Sequence[Knob], macs: Callable[[Knob], int], budget: int) -> Knob | None:
    """The first of some settings, each cheaper than the one before, that fits the budget; None if none does."""
    low, high = 0, len(knobs)
    while low < high:
        middle = (low + high) // 2
        if macs(knobs[middle]) <= budget:
            high = middle
        else:
            low = middle + 1
    return knobs[low] if low < len(knobs) else None


def rates() -> list[float]:
    """Keep rates from all to nothing."""
    return [rate / RATES for rate in range(RATES, 0, -1)]


def too_low(job: Job, name: str, ratio: float, least: int) -> Unreachable:
    """What to say of a ratio below the least MACs that a method comes to."""
    lowest = least / job.budget(1.0)
    return Unreachable(f"{name} takes at least {lowest:.3f} of {job.host.info.name}'s MACs, more than {ratio:g}")


def stages(info: HostInfo) -> list[int]:
    """The three blocks (from 1) in which EViT and DynamicViT remove patches: those that begin the later quarters."""
    return sorted({round(info.depth * quarter / 4) + 1 for quarter in (1, 2, 3)} - {info.depth + 1, 1})
