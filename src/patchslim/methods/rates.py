"""Knobs that some peers share: a keep rate, and the three blocks in which patches are removed."""

from __future__ import annotations

from patchslim.hosts import HostInfo

RATES = 10_000  # steps of a keep rate between everything and nothing


def rates() -> list[float]:
    """Keep rates from all to nothing."""
    return [rate / RATES for rate in range(RATES, 0, -1)]


def stages(info: HostInfo) -> list[int]:
    """The three blocks (from 1) in which EViT and DynamicViT remove patches: those that begin the later quarters."""
    return sorted({round(info.depth * quarter / 4) + 1 for quarter in (1, 2, 3)} - {info.depth + 1, 1})
