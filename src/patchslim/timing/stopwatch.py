"""Blocks and whole networks timed as `bench` times them, and remembered: a search that goes on sees the same times."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.cache import Cache, Key
from patchslim.errors import BudgetError, first_words
from patchslim.events import Listener
from patchslim.hosts import Host, open_host, open_slim
from patchslim.plan import SlimPlan
from patchslim.slimmed import assembled_
from patchslim.timing.latency import Contest, Timed, check_clock, described, in_turns
from patchslim.timing.memory import out_of_memory
from patchslim.timing.modes import DTYPES, Call, in_dtype, modes_for, replayed, running

BLOCK_SECONDS, MULTIPLE_SECONDS = 0.2, 1.0  # for each block: of a network, and where its numbers of tokens are compared
CPU_SECONDS, GPU_SECONDS = 6.0, 1.5  # for each whole network in each mode
STEADY, PATIENCE = 0.04, 4  # times that spread more are taken anew, for so many times as long
MULTIPLES = (64, 8)  # rows that matrix units and attention kernels work on at a time; what they want numbers aligned to
PLACES = 3  # where a step is looked for
NOTICED = 0.02  # a step is one if it costs at least this share of what is below it


@dataclass(frozen=True)
class Conditions:
    """How models are timed: images in a batch, dtype of weights and images, mode (auto: the fastest)."""

    batch_size: int = 32
    dtype: str = "float32"
    mode: str = "auto"


class Stopwatch:
    """Times slim models of one host on its device, in the precision and with the batch asked for."""

    def __init__(
        self, host: Host, conditions: Conditions, cache: Cache, listen: Listener, rectangular: bool = True
    ) -> None:
        self.host, self.conditions, self.cache, self.listen = host, conditions, cache, listen
        self.clock = perf_counter
        self.device = next(host.model.parameters()).device
        self.about = described(self.device)  # what times belong to
        modes = modes_for((conditions.mode,), self.device, not rectangular)
        seconds = CPU_SECONDS if self.device.type == "cpu" else GPU_SECONDS
        self.contest = Contest(modes, conditions.dtype, seconds=seconds, clock=self.clock, tell=self._tell)

    def whole(
        self, plan: SlimPlan, parts: Mapping[int, nn.Module] | None = None, images: Tensor | None = None
    ) -> dict[str, Any]:
        """A slim model against the host as it comes, each in its best mode, in turns: seconds per batch, modes, spread.

        On noise, unless images (B, C, H, W) are given.
        """

        def timed() -> dict[str, Any]:
            models = {"slim": _slimmed(self.host, plan, parts), "host": self.host.model}
            models = {name: in_dtype(model, self.conditions.dtype) for name, model in models.items()}
            batch = self._batch(images)
            found = _told(self.contest.time(models, batch))
            if found["spread"] > STEADY:
                longer = replace(self.contest, seconds=PATIENCE * self.contest.seconds)
                found = _told(longer.time(models, batch))
            return found

        entry = self._once(("whole", _steps(plan)), timed)
        return entry | {"share": entry["seconds"]["slim"] / entry["seconds"]["host"]}

    def blocks(self, plan: SlimPlan) -> list[float]:
        """Each block's time on what its own network gives it, over that of a host's block in the same turns, so that a
        slow moment of the machine falls on both: (depth,)."""
        entry = self._once(("blocks", _steps(plan)), lambda: {"times": self._timed_blocks(plan)})
        return [float(time) for time in entry["times"]]

    def rest(self, plan: SlimPlan) -> float:
        """The time of all that is not in blocks, embedding and head, over that of a host's block."""
        return float(self._once(("rest",), lambda: {"time": self._timed_rest(plan)})["time"])

    def multiple(self) -> int:
        """By what multiples the device likes its tokens: the largest multiple of which a first token costs most of
        the price of all; 1 where tokens cost about the same each."""

        def timed() -> dict[str, Any]:
            self._tell("timing numbers of tokens")
            return {"multiple": next((multiple for multiple in MULTIPLES if self._rises_by(multiple)), 1)}

        return int(self._once(("multiple",), timed)["multiple"])

    @torch.inference_mode()
    def _timed_blocks(self, plan: SlimPlan) -> list[float]:
        self._tell(f"timing blocks that keep {', '.join(map(str, plan.counts))} patches")
        own, host = self._seen(_slimmed(self.host, plan)), self._seen(self.host.model)
        x: Any = host.embed(self._batch(None))
        reference = self._call(_unmasked(host.blocks[0]), x)
        kinds = list(zip(self.host.info.blocks, plan.entering, _steps(plan), strict=True))
        calls: dict[Any, Call] = {}
        for block, kind in zip(own.blocks, kinds, strict=True):
            if kind not in calls:  # one of each kind will do
                calls[kind] = self._call(_unmasked(block), x)
            x = block(x, None)
        whole, *times = self._in_turns([reference, *calls.values()])
        by_kind = dict(zip(calls, times, strict=True))
        return [by_kind[kind] / whole for kind in kinds]

    @torch.inference_mode()
    def _timed_rest(self, plan: SlimPlan) -> float:
        self._tell("timing embedding and head")
        own, host = self._seen(_slimmed(self.host, plan)), self._seen(self.host.model)
        images = self._batch(None)
        x: Any = own.embed(images)
        calls = [self._call(_unmasked(host.blocks[0]), x), self._call(own.embed, images)]
        for block in own.blocks:
            x = block(x, None)
        whole, *ends = self._in_turns([*calls, self._call(own.logits, x)])
        return sum(ends) / whole

    @torch.inference_mode()
    def _rises_by(self, multiple: int) -> bool:
        """Whether time goes up in steps of so many tokens."""
        every = range(multiple, self.host.info.tokens - multiple + 1, multiple)
        if not every:
            return False
        starts = every[:: math.ceil(len(every) / PLACES)]
        host = self._seen(self.host.model)
        x = host.embed(self._batch(None))
        counts = sorted({start + more for start in starts for more in (0, 1, multiple)})
        calls = [self._call(_unmasked(host.blocks[0]), x[:, :n].contiguous()) for n in counts]
        times = dict(zip(counts, self._in_turns(calls, MULTIPLE_SECONDS), strict=True))

        def is_step(start: int) -> bool:
            first, all_of_them = times[start + 1] - times[start], times[start + multiple] - times[start]
            return first >= all_of_them / 2 and all_of_them >= NOTICED * times[start]

        return all(is_step(start) for start in starts)

    def _seen(self, model: nn.Module) -> Host:
        """The host or a slim model in the precision asked for, its parts at hand."""
        return open_slim(in_dtype(model, self.conditions.dtype), self.host.info)

    def _call(self, part: Callable[[Any], Any], x: Any) -> Call:
        """A part of a network on what comes in; on a GPU as a CUDA graph, or time would go to launching kernels."""
        call = partial(running(part, self.device), x)
        return replayed(call, self.device) if self.device.type == "cuda" else call

    def _in_turns(self, calls: Sequence[Call], seconds: float = BLOCK_SECONDS) -> list[float]:
        """Medians; the first call is a whole block."""
        timings = in_turns(calls, self.device, seconds, self.clock)
        check_clock(timings[:1])
        return [timing.median for timing in timings]

    def _batch(self, images: Tensor | None) -> Tensor:
        info, size = self.host.info, self.conditions.batch_size
        if images is None:
            images = torch.randn(size, info.channels, *info.image_size, generator=torch.Generator().manual_seed(0))
        images = images[:size].repeat(-(-size // len(images[:size])), 1, 1, 1)[:size]
        return images.to(self.device, DTYPES[self.conditions.dtype])

    def _once(self, key: Key, timed: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Timed the first time it is asked for under these conditions, if there is memory enough; then remembered."""

        def within_memory() -> dict[str, Any]:
            try:
                return timed()
            except Exception as error:
                if not out_of_memory(error):
                    raise
                raise BudgetError(
                    f"Timing a batch of {self.conditions.batch_size} takes more memory than there is "
                    f"({first_words(error)}); choose a smaller one with --batch-size."
                ) from None

        return self.cache.once(("timed", *self.about.values(), *astuple(self.conditions), *key), within_memory)

    def _tell(self, what: str) -> None:
        self.listen({"event": "timing", "what": what})


def _told(found: Mapping[str, Timed]) -> dict[str, Any]:
    """Each model's seconds in its best mode, and by how much they spread."""
    best = {name: timed.times[timed.best] for name, timed in found.items()}
    return {
        "seconds": {name: timing.median for name, timing in best.items()},
        "modes": {name: timed.best for name, timed in found.items()},
        "spread": max(timing.spread for timing in best.values()),
    }


def _unmasked(block: nn.Module) -> Callable[[Any], Any]:
    """A block without a mask: some layers of transformers have to be told."""
    return lambda x: block(x, None)


def _steps(plan: SlimPlan) -> list[str]:
    """What a plan's time depends on: its steps, and not which patches they keep."""
    return [step.model_dump_json() for step in plan.steps]


def _slimmed(host: Host, plan: SlimPlan, parts: Mapping[int, nn.Module] | None = None) -> nn.Module:
    """A slim model for a clock; steps that are not told otherwise choose by untrained parts."""
    return assembled_(open_host(copy.deepcopy(host.model)), plan, parts).eval()
