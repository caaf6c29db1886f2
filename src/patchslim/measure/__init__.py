"""Measurement: accuracy, of one model or of two on the same images, and throughput."""

from patchslim.measure.accuracy import Accuracy, evaluate, evaluate_pair
from patchslim.measure.bench import BenchConfig, bench
from patchslim.measure.comparison import CompareConfig, SpeedConfig, compare
from patchslim.measure.paired import Paired, paired

__all__ = ["Accuracy", "BenchConfig", "CompareConfig", "Paired", "SpeedConfig", "bench", "compare"]
__all__ += ["evaluate", "evaluate_pair", "paired"]
