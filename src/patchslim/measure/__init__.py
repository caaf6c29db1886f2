"""Measurement: accuracy, of one model or of two on the same images, and throughput."""

from patchslim.measure.accuracy import Accuracy, evaluate, evaluate_pair
from patchslim.measure.bench import BenchConfig, bench
from patchslim.measure.comparison import CompareConfig, SpeedConfig, compare
from patchslim.measure.paired import Paired, paired
from patchslim.measure.profile import profile
from patchslim.timing import DTYPES, Timing, device_name, time_side_by_side

__all__ = [
    "DTYPES",
    "Accuracy",
    "BenchConfig",
    "CompareConfig",
    "Paired",
    "SpeedConfig",
    "Timing",
    "bench",
    "compare",
    "device_name",
    "evaluate",
    "evaluate_pair",
    "paired",
    "profile",
    "time_side_by_side",
]
