"""Models timed side by side in one run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.timing.running import running

Clock = Callable[[], float]  # seconds since whenever

WARM_UP = 3  # calls before anything is timed
LEAST_ROUNDS, MOST_ROUNDS = 5, 200
# A GPU works behind the program's back, and waiting for it costs some 10 µs. Calls in a turn follow one another without
# waiting, as in real use, for at least so long.
GPU_TURN = 0.02
MOST_CALLS = 200  # in one turn


@dataclass(frozen=True)
class Timing:
    """Seconds per batch: the median of the rounds, and the middle half of them."""

    median: float
    low: float
    high: float

    def throughput(self, batch_size: int) -> float:
        """Images per second."""
        return batch_size / self.median

    @property
    def spread(self) -> float:
        """By how much the middle half of the rounds differs, over the median."""
        return (self.high - self.low) / self.median

    @property
    def seconds(self) -> list[float]:
        """First quartile, median, third quartile."""
        return [self.low, self.median, self.high]


def time_side_by_side(
    models: Sequence[nn.Module],
    batch: Tensor,
    *,
    dtype: str = "float32",
    compile_models: bool = False,
    seconds: float = 3.0,
) -> list[Timing]:
    """Time models on one batch in turns, so that a slow moment of the machine falls on all of them alike.

    `seconds` is spent on each model, after warming up. Lower precision is autocast: the models stay as they are.
    """
    calls = [_prepare(model, batch, dtype, compile_models) for model in models]
    return in_turns(calls, batch.device, seconds)


def in_turns(
    calls: Sequence[Callable[[], Any]], device: torch.device, seconds: float, clock: Clock = time.perf_counter
) -> list[Timing]:
    """Time calls in turns, about `seconds` each, after warming up."""
    for call in calls:
        for _ in range(WARM_UP):
            call()
    pace = [_turn(call, 1, device, clock) for call in calls]
    repeats = [_calls_per_turn(own, device) for own in pace]
    longest = max(own * times for own, times in zip(pace, repeats, strict=True))
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / max(longest, 1e-6))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for own, call, times in zip(found, calls, repeats, strict=True):
            own.append(_turn(call, times, device, clock))
    return [_timing(own) for own in found]


def wait_for(device: torch.device) -> None:
    """Return once the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _prepare(model: nn.Module, batch: Tensor, dtype: str, compile_model: bool) -> Callable[[], Any]:
    run: Any = torch.compile(model, fullgraph=True) if compile_model else model
    call = running(run, batch.device, dtype if dtype != "float32" else None)
    return lambda: call(batch)


def _calls_per_turn(pace: float, device: torch.device) -> int:
    if device.type == "cpu":
        return 1
    return max(1, min(MOST_CALLS, math.ceil(GPU_TURN / max(pace, 1e-6))))


def _turn(call: Callable[[], Any], times: int, device: torch.device, clock: Clock) -> float:
    """Seconds per call."""
    wait_for(device)
    start = clock()
    for _ in range(times):
        call()
    wait_for(device)
    return (clock() - start) / times


def _timing(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high)
