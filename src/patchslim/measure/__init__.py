"""Measurement: accuracy and throughput."""

from patchslim.measure.accuracy import Accuracy, evaluate
from patchslim.measure.compare import compare, device_name
from patchslim.measure.latency import DTYPES, Timing, time_side_by_side

__all__ = ["DTYPES", "Accuracy", "Timing", "compare", "device_name", "evaluate", "time_side_by_side"]
