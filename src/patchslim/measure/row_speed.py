"""Throughput of a row's model and of the host, in turns, so that a slow moment of the machine falls on both alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.hosts import HostInfo
from patchslim.timing import DTYPES, Contest
from patchslim.timing.modes import modes_for
from patchslim.timing.running import in_dtype


@dataclass(frozen=True)
class SpeedConfig:
    """How rows are timed: batches of one size and precision; `seconds` for each model and mode."""

    batch_size: int = 32
    dtype: str = "float32"
    modes: tuple[str, ...] = ("auto",)
    seconds: float = 2.0


def noise_for(info: HostInfo, device: torch.device, config: SpeedConfig) -> Tensor:
    """Noise (B, C, H, W): what is in images does not matter to most models."""
    return torch.randn(config.batch_size, info.channels, *info.image_size, device=device).to(DTYPES[config.dtype])


def images_for(source: ImageSource, device: torch.device, config: SpeedConfig) -> Tensor:
    """The first images of a source, repeated to fill the batch (B, C, H, W): where the time depends on them."""
    pixels, _ = next(iter(source.batches(config.batch_size)))
    times = -(-config.batch_size // len(pixels))
    return pixels.repeat(times, 1, 1, 1)[: config.batch_size].to(device, DTYPES[config.dtype])


def timed_beside(model: nn.Module, base: nn.Module, batch: Tensor, config: SpeedConfig) -> dict[str, Any]:
    """Images per second of both, each in its fastest mode, and the speed-up."""
    modes = modes_for(config.modes, batch.device, packed=False)
    contest = Contest(modes, config.dtype, seconds=config.seconds)
    found = contest.time({"row": in_dtype(model, config.dtype), "base": in_dtype(base, config.dtype)}, batch)
    own, other = found["row"], found["base"]
    return {
        "throughput": len(batch) / own.seconds,
        "mode": own.best,
        "base_throughput": len(batch) / other.seconds,
        "base_mode": other.best,
        "speedup": other.seconds / own.seconds,
    }
