"""Where a forward pass spends its time: the embedding, every block, the head."""

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.hosts import HostInfo, open_slim
from patchslim.timing.latency import Clock, wait_for
from patchslim.timing.modes import running

LEAST_ROUNDS, MOST_ROUNDS = 3, 50


def profile(
    models: Mapping[str, nn.Module],
    info: HostInfo,
    batch: Tensor,
    *,
    autocast: str | None = None,
    seconds: float = 3.0,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Median seconds of each part of some models of one host on a batch, eager, in turns.

    The embedding is all before the first block, the head all after the last one, so the parts add up to the whole. On
    a GPU a small batch spends most of its time between kernels, and so do the parts.
    """
    blocks = {name: open_slim(model, info).blocks for name, model in models.items()}
    runs = {name: running(model, batch.device, autocast) for name, model in models.items()}

    def spans(name: str) -> list[float]:
        """Seconds of every part in one pass: (blocks + 2,)."""
        moments: list[Any] = []

        def mark(*_: Any) -> None:
            moments.append(_moment(batch.device, clock))

        wait_for(batch.device)
        with ExitStack() as stack:  # moments: the model starts, its first block starts, each block ends, the model ends
            for module in (models[name], blocks[name][0]):
                stack.enter_context(module.register_forward_pre_hook(mark))
            for module in (*blocks[name], models[name]):
                stack.enter_context(module.register_forward_hook(mark))
            runs[name](batch)
        wait_for(batch.device)
        return [_between(one, other) for one, other in pairwise(moments)]

    longest = max(sum(spans(name)) for name in models)  # also warms up
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / max(longest, 1e-6))))
    found: dict[str, list[list[float]]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, own in found.items():
            own.append(spans(name))
    parts = ["embedding", *(f"block {layer}" for layer in range(1, info.depth + 1)), "head"]
    return {"parts": parts} | {
        name: [statistics.median(times) for times in zip(*own, strict=True)] for name, own in found.items()
    }


def _moment(device: torch.device, clock: Clock) -> Any:
    """Now, as the device sees it: a GPU passes an event when it comes to it."""
    if device.type != "cuda":
        wait_for(device)
        return clock()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _between(one: Any, other: Any) -> float:
    if isinstance(one, torch.cuda.Event):
        return float(one.elapsed_time(other)) / 1000  # it counts milliseconds
    return float(other - one)
