"""A slim model against its host: the speed-up measured, and the one the MACs promise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from patchslim.macs import host_macs
from patchslim.slim import SlimModel
from patchslim.timing import device_name, time_side_by_side


def compare(
    slim: SlimModel, host: nn.Module, batch: Tensor, dtype: str, compiled: bool, seconds: float
) -> dict[str, Any]:
    """Throughput of both on one batch (B, C, H, W), and the speed-up against the one the MACs of its images promise."""
    place, batch_size = batch.device, len(batch)
    ours, base = time_side_by_side([slim, host], batch, dtype=dtype, compile_models=compiled, seconds=seconds)
    ideal = ideal_speedup(slim, batch)
    speedup = base.median / ours.median
    return {
        "throughput": ours.throughput(batch_size),
        "baseline_throughput": base.throughput(batch_size),
        "speedup": speedup,
        "ideal_speedup": ideal,
        "share_of_ideal": speedup / ideal,
        "seconds_per_batch": ours.seconds,
        "baseline_seconds_per_batch": base.seconds,
        "batch_size": batch_size,
        "dtype": dtype,
        "compile": compiled,
        "device": device_name(place),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def ideal_speedup(slim: SlimModel, batch: Tensor) -> float:
    """What the MACs of a batch (B, C, H, W) promise: the host's over the slim model's mean."""
    return host_macs(slim.host_info) / float(slim.image_macs(batch).double().mean())
