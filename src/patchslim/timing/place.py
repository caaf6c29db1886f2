"""Where something was timed."""

from __future__ import annotations

import torch


def device_name(place: torch.device) -> str:
    """The GPU's own name, or cpu."""
    return torch.cuda.get_device_name(place) if place.type == "cuda" else place.type
