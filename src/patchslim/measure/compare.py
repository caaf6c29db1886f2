"""A slim model against its host: the speed-up measured, and the one the MACs promise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from patchslim.hosts import HostInfo
from patchslim.macs import count_macs, host_macs
from patchslim.measure.latency import time_side_by_side


def compare(
    slim: nn.Module, host: nn.Module, batch_size: int, dtype: str, compiled: bool, seconds: float
) -> dict[str, Any]:
    """Throughput of both in images per second, and the speed-up against the one the MACs promise."""
    info: HostInfo = slim.host_info  # type: ignore[assignment]
    place = next(slim.parameters()).device
    batch = torch.randn(batch_size, info.channels, *info.image_size, device=place)
    ours, base = time_side_by_side([slim, host], batch, dtype=dtype, compile_models=compiled, seconds=seconds)
    ideal = host_macs(info) / count_macs(slim)
    speedup = base.median / ours.median
    return {
        "throughput": ours.throughput(batch_size),
        "baseline_throughput": base.throughput(batch_size),
        "speedup": speedup,
        "ideal_speedup": ideal,
        "share_of_ideal": speedup / ideal,
        "seconds_per_batch": [ours.low, ours.median, ours.high],
        "baseline_seconds_per_batch": [base.low, base.median, base.high],
        "batch_size": batch_size,
        "dtype": dtype,
        "compile": compiled,
        "device": device_name(place),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def device_name(place: torch.device) -> str:
    """The GPU's own name, or cpu."""
    return torch.cuda.get_device_name(place) if place.type == "cuda" else place.type
