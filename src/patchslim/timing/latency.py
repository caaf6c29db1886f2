"""Models timed side by side: on one batch and in the same turns, each in every mode that works for it."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PatchslimError, first_words
from patchslim.timing.memory import out_of_memory
from patchslim.timing.modes import Call, Prepared, forget_compiled, prepare, running

Clock = Callable[[], float]  # seconds since whenever

WARM_UP = 3  # calls before anything is timed
LEAST_ROUNDS, MOST_ROUNDS = 5, 200
TRIES = 5  # of a turn in which the clock was set back
# A GPU works behind the program's back, and waiting for it costs some 10 µs. Calls in a turn follow one another without
# waiting, as in real use, for at least so long.
GPU_TURN = 0.02
MOST_CALLS = 200  # in one turn


@dataclass(frozen=True)
class Timing:
    """Seconds per batch: the median of the rounds, and the middle half of them."""

    low: float
    median: float
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


@dataclass(frozen=True)
class Timed:
    """A model's times by mode, and what it took to make it ready."""

    prepared: Prepared
    times: Mapping[str, Timing]

    @property
    def best(self) -> str:
        """The fastest mode: a model is told by it."""
        return min(self.times, key=lambda mode: self.times[mode].median)

    @property
    def seconds(self) -> float:
        """The median of the fastest mode."""
        return self.times[self.best].median


@dataclass(frozen=True)
class Contest:
    """How models are timed: `seconds` go to each one in each mode; `dtype` is the weights' own or that of autocast."""

    modes: Sequence[str]
    dtype: str = "float32"
    autocast: bool = False
    seconds: float = 3.0
    clock: Clock = time.perf_counter
    tell: Callable[[str], None] = lambda what: None
    rounds: tuple[int, int] = (LEAST_ROUNDS, MOST_ROUNDS)  # at least, at most

    def time(self, models: Mapping[str, nn.Module], batch: Tensor) -> dict[str, Timed]:
        """Every model in every mode, timed in turns on one batch (B, C, H, W)."""
        return self.turns(self.ready(models, batch), batch)

    def ready(self, models: Mapping[str, nn.Module], batch: Tensor) -> dict[str, Prepared]:
        """Every model in every mode, compiled and run once."""
        if any(mode.startswith("compiled") for mode in self.modes):
            forget_compiled(4 * len(models))
        return {name: self._prepare(name, model, batch) for name, model in models.items()}

    def turns(self, prepared: Mapping[str, Prepared], batch: Tensor) -> dict[str, Timed]:
        """Times of what is ready, in turns."""
        self.say("timing", len(batch))
        calls = {(name, mode): ready.call for name, own in prepared.items() for mode, ready in own.ready.items()}
        found = in_turns([*calls.values()], batch.device, self.seconds, self.clock, self.rounds)
        timings = dict(zip(calls, found, strict=True))
        check_clock(found)
        return {name: Timed(own, {mode: timings[name, mode] for mode in own.ready}) for name, own in prepared.items()}

    def say(self, what: str, size: int) -> None:
        """Tell whoever listens what is being done."""
        self.tell(f"{what}, batch {size}, {self.dtype}")

    @property
    def autocast_to(self) -> str | None:
        """The dtype that matrix products are cast to, where weights are not."""
        return self.dtype if self.autocast and self.dtype != "float32" else None

    def _prepare(self, name: str, model: nn.Module, batch: Tensor) -> Prepared:
        self.say(f"preparing {name.replace('_', ' ')}", len(batch))
        try:
            return prepare(model, batch, self.modes, self.autocast_to)
        except RuntimeError as error:
            if out_of_memory(error) or "not implemented" not in str(error):
                raise
            raise PatchslimError(
                f"{device_name(batch.device)} can't compute in {self.dtype} ({first_words(error)}); "
                "choose another dtype."
            ) from None


def time_side_by_side(models: Sequence[nn.Module], batch: Tensor, seconds: float = 3.0) -> list[Timing]:
    """Time models as they are on one batch in turns: a slow moment of the machine falls on all of them alike."""
    return in_turns([partial(running(model, batch.device), batch) for model in models], batch.device, seconds)


def in_turns(
    calls: Sequence[Call],
    device: torch.device,
    seconds: float,
    clock: Clock = time.perf_counter,
    bounds: tuple[int, int] = (LEAST_ROUNDS, MOST_ROUNDS),
) -> list[Timing]:
    """Time calls in turns, about `seconds` each, after warming up."""
    for call in calls:
        for _ in range(min(WARM_UP, bounds[0])):
            call()
    pace = [_turn(call, 1, device, clock) for call in calls]
    most = 1 if device.type == "cpu" else MOST_CALLS
    repeats = [max(1, min(most, math.ceil(GPU_TURN / max(own, 1e-6)))) for own in pace]
    longest = max(own * times for own, times in zip(pace, repeats, strict=True))
    rounds = max(bounds[0], min(bounds[1], int(seconds / max(longest, 1e-6))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for own, call, times in zip(found, calls, repeats, strict=True):
            own.append(_turn(call, times, device, clock))
    return [Timing(*statistics.quantiles(own, n=4)) for own in found]


def _turn(call: Call, times: int, device: torch.device, clock: Clock) -> float:
    """Seconds per call. A turn in which the clock was set back is taken anew."""
    for _ in range(TRIES):
        wait_for(device)
        start = clock()
        for _ in range(times):
            call()
        wait_for(device)
        if (seconds := clock() - start) >= 0:
            return seconds / times
    raise PatchslimError("The clock of this machine runs backwards, so nothing can be timed on it; give a MAC ratio.")


def check_clock(timings: Sequence[Timing]) -> None:
    """Raise PatchslimError where whole models, or blocks of theirs, took no time."""
    if any(timing.median <= 0 for timing in timings):
        raise PatchslimError("The clock of this machine stands still, so nothing can be timed on it; give a MAC ratio.")


def wait_for(device: torch.device) -> None:
    """Return once the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def device_name(device: torch.device) -> str:
    """The GPU's own name, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def described(device: torch.device) -> dict[str, Any]:
    """What times belong to; threads count on a CPU only."""
    threads = torch.get_num_threads() if device.type == "cpu" else None
    return {"device": device_name(device), "threads": threads, "torch": torch.__version__}
