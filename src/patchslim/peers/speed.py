"""Throughput of a row's model and of the host, in turns, so that a slow moment of the machine falls on both alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.hosts import HostInfo
from patchslim.timing.latency import in_turns
from patchslim.timing.modes import modes_for, prepare
from patchslim.timing.running import DTYPES, in_dtype


@dataclass(frozen=True)
class SpeedConfig:
    """How rows are timed: noise of one batch size and precision; `seconds` for each model and mode."""

    batch_size: int = 32
    dtype: str = "float32"
    modes: tuple[str, ...] = ("auto",)
    seconds: float = 2.0


def batch_for(info: HostInfo, device: torch.device, config: SpeedConfig) -> Tensor:
    """Noise (B, C, H, W)."""
    return torch.randn(config.batch_size, info.channels, *info.image_size, device=device).to(DTYPES[config.dtype])


def timed_beside(model: nn.Module, base: nn.Module, batch: Tensor, config: SpeedConfig) -> dict[str, Any]:
    """Images per second of both, each in its fastest mode, and the speed-up."""
    modes = modes_for(config.modes, batch.device, threshold=False)
    both = [prepare(in_dtype(own, config.dtype), batch, modes) for own in (model, base)]
    ways = [(side, mode) for side, own in enumerate(both) for mode in own.ready]
    timings = in_turns([both[side].ready[mode].call for side, mode in ways], batch.device, config.seconds)
    best: list[tuple[str, float]] = []
    for side in range(2):
        own = {mode: timing.median for (at, mode), timing in zip(ways, timings, strict=True) if at == side}
        mode = min(own, key=lambda name: own[name])
        best.append((mode, own[mode]))
    (mode, seconds), (base_mode, base_seconds) = best
    return {
        "throughput": len(batch) / seconds,
        "mode": mode,
        "base_throughput": len(batch) / base_seconds,
        "base_mode": base_mode,
        "speedup": base_seconds / seconds,
    }
