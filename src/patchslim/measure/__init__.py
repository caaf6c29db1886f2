"""Measurement: accuracy, of one model or of two on the same images, and throughput."""

from patchslim.measure.accuracy import Accuracy, evaluate, evaluate_pair
from patchslim.measure.compare import compare, device_name
from patchslim.measure.latency import DTYPES, Timing, time_side_by_side
from patchslim.measure.paired import Paired, paired

__all__ = [
    "DTYPES",
    "Accuracy",
    "Paired",
    "Timing",
    "compare",
    "device_name",
    "evaluate",
    "evaluate_pair",
    "paired",
    "time_side_by_side",
]
