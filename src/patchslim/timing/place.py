"""Where something was timed."""

from __future__ import annotations

from typing import Any

import torch


def device_name(place: torch.device) -> str:
    """The GPU's own name, or cpu."""
    return torch.cuda.get_device_name(place) if place.type == "cuda" else place.type


def place_of(place: torch.device) -> dict[str, Any]:
    """What times belong to; threads count on a CPU only."""
    threads = torch.get_num_threads() if place.type == "cpu" else None
    return {"device": device_name(place), "threads": threads, "torch": torch.__version__}
