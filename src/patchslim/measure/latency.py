"""Throughput of a host and its slim model, timed side by side in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Timing:
    """Seconds per batch: the median of the rounds, and the middle half of them."""

    median: float
    low: float
    high: float

    def throughput(self, batch_size: int) -> float:
        """Images per second."""
        return batch_size / self.median


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
    for call in calls:
        for _ in range(3):
            call()
    longest = max(_seconds(call, batch.device) for call in calls)
    rounds = max(5, min(200, int(seconds / max(longest, 1e-6))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for own, call in zip(times, calls, strict=True):
            own.append(_seconds(call, batch.device))
    return [_timing(own) for own in times]


def _prepare(model: nn.Module, batch: Tensor, dtype: str, compile_model: bool) -> Callable[[], Any]:
    run: Any = torch.compile(model, fullgraph=True) if compile_model else model
    context: AbstractContextManager[Any] = nullcontext()
    if dtype != "float32":
        context = torch.autocast(batch.device.type, dtype=DTYPES[dtype])

    def call() -> Any:
        with torch.inference_mode(), context:
            return run(batch)

    return call


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timing(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high)
