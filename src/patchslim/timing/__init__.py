"""Clocks: models made ready in the modes that a device has, and timed in turns."""

from patchslim.timing.latency import Clock, Contest, Timed, Timing, device_name, in_turns, time_side_by_side
from patchslim.timing.modes import DTYPES

__all__ = ["DTYPES", "Clock", "Contest", "Timed", "Timing", "device_name", "in_turns", "time_side_by_side"]
