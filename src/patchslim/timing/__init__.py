"""Clocks: models made ready in the modes that a device has, and timed in turns."""

from patchslim.timing.contest import Contest, Timed
from patchslim.timing.device import device_name
from patchslim.timing.latency import Clock, Timing, in_turns, time_side_by_side
from patchslim.timing.running import DTYPES

__all__ = [
    "DTYPES",
    "Clock",
    "Contest",
    "Timed",
    "Timing",
    "device_name",
    "in_turns",
    "time_side_by_side",
]
