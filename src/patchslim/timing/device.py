"""Where something was timed."""

from __future__ import annotations

from typing import Any

import torch


def device_name(device: torch.device) -> str:
    """The GPU's own name, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def described(device: torch.device) -> dict[str, Any]:
    """What times belong to; threads count on a CPU only."""
    threads = torch.get_num_threads() if device.type == "cpu" else None
    return {"device": device_name(device), "threads": threads, "torch": torch.__version__}
