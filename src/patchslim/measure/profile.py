"""Where a forward pass spends its time: the embedding, every block, the head."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.hosts import HostInfo, open_slim
from patchslim.timing.latency import Clock, wait_for
from patchslim.timing.running import running

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
        return _spans(models[name], blocks[name], lambda: runs[name](batch), batch.device, clock)

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


def _spans(
    model: nn.Module, blocks: Sequence[nn.Module], call: Callable[[], Any], device: torch.device, clock: Clock
) -> list[float]:
    """Seconds of every part in one pass: (blocks + 2,)."""
    moments: list[Any] = []
    wait_for(device)
    with _marking(model, blocks, lambda: moments.append(_moment(device, clock))):
        call()
    wait_for(device)
    return [_between(one, other) for one, other in pairwise(moments)]


@contextmanager
def _marking(model: nn.Module, blocks: Sequence[nn.Module], mark: Callable[[], None]) -> Iterator[None]:
    """Have `mark` called as the model starts, as its first block starts, after every block, and at the end."""

    def hook(*_: Any) -> None:
        mark()

    with ExitStack() as stack:
        for module in (model, blocks[0]):
            stack.enter_context(module.register_forward_pre_hook(hook))
        for module in (*blocks, model):
            stack.enter_context(module.register_forward_hook(hook))
        yield


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
