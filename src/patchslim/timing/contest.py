"""Several models on one batch, each in every mode that works for it, all timed in the same turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from patchslim.errors import PatchslimError, first_words
from patchslim.timing.device import device_name
from patchslim.timing.latency import Clock, Timing, in_turns
from patchslim.timing.memory import out_of_memory
from patchslim.timing.modes import Prepared, prepare
from patchslim.timing.running import forget_compiled


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

    def time(self, models: Mapping[str, nn.Module], batch: Tensor) -> dict[str, Timed]:
        """Every model in every mode, timed in turns on one batch (B, C, H, W)."""
        if any(mode.startswith("compiled") for mode in self.modes):
            forget_compiled(4 * len(models))
        prepared = {name: self._prepare(name, model, batch) for name, model in models.items()}
        self.say("timing", len(batch))
        ways = [(name, mode) for name, own in prepared.items() for mode in own.ready]
        calls = [prepared[name].ready[mode].call for name, mode in ways]
        times: dict[str, dict[str, Timing]] = {name: {} for name in prepared}
        timings = in_turns(calls, batch.device, self.seconds, self.clock)
        for (name, mode), timing in zip(ways, timings, strict=True):
            times[name][mode] = timing
        return {name: Timed(prepared[name], times[name]) for name in prepared}

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
            where = device_name(batch.device)
            raise PatchslimError(
                f"{where} can't compute in {self.dtype} ({first_words(error)}); choose another dtype."
            ) from None
