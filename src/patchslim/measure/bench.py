"""A slim model against its host, each in its own best mode, over batch sizes and dtypes."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PatchslimError, first_words
from patchslim.hosts import with_matmul_embed
from patchslim.measure.compare import device_name, ideal_speedup
from patchslim.measure.latency import Clock, Timing, in_turns
from patchslim.measure.memory import fitting, out_of_memory
from patchslim.measure.modes import Prepared, modes_for, prepare
from patchslim.measure.profile import profile
from patchslim.measure.running import DTYPES, in_dtype
from patchslim.slim import SlimModel

MOST_IMAGES = 2**16  # in a batch
BASELINES = {"baseline": "", "baseline_same_embedding": "_same_embedding"}  # and how their numbers' names end


@dataclass(frozen=True)
class BenchConfig:
    """What to time. `seconds` go to each model in each mode; weights are cast to the dtype unless it is autocast."""

    batch_sizes: Sequence[int] = (32,)
    dtypes: Sequence[str] = ("float32",)
    modes: Sequence[str] = ("auto",)
    seconds: float = 3.0
    autocast: bool = False
    profile: bool = False

    def __post_init__(self) -> None:
        for size in self.batch_sizes:
            if not 1 <= size <= MOST_IMAGES:
                raise PatchslimError(f"A batch has from 1 to {MOST_IMAGES} images, and {size} is not in between.")
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise PatchslimError(f"There is no dtype {dtype}; choose from {', '.join(DTYPES)}.")
        if not (self.batch_sizes and self.dtypes and self.modes):
            raise PatchslimError("Give at least one batch size, one dtype and one mode.")
        if not 0 < self.seconds < math.inf:
            raise PatchslimError(f"The seconds to spend have to be more than 0, and {self.seconds} is not.")


def bench(
    slim: SlimModel,
    host: nn.Module,
    config: BenchConfig | None = None,
    *,
    images: Tensor | None = None,
    tell: Callable[[str], None] = lambda what: None,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Throughput of a slim model, of its host, and of the host with the slim model's patch embedding.

    `images` (K, C, H, W) are repeated to fill a batch; noise does unless the plan has thresholds. Models are timed
    where they are. The result has a row for every dtype and batch size, and the first row's numbers once more on top.
    `tell` hears what is being done.
    """
    config = config or BenchConfig()
    device, threshold = next(slim.parameters()).device, slim.plan.mode == "threshold"
    modes = modes_for(config.modes, device, threshold)
    if threshold and images is None:
        raise PatchslimError("How much a run with thresholds computes depends on the images; give some with --data.")
    rows = []
    for dtype in config.dtypes:
        case = _Case(slim, host, config, dtype, modes, images, tell, clock)
        for size in dict.fromkeys(config.batch_sizes):
            row = fitting(size, case.row, device_name(device))
            reduced = None if row["batch_size"] == size else row["batch_size"]
            rows.append(row | {"asked_batch_size": size, "reduced_batch": reduced})
    return about(device, modes) | summary(rows)


def about(device: torch.device, modes: Sequence[str]) -> dict[str, Any]:
    """What the numbers were measured with."""
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "modes": list(modes),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first row's numbers on top, and all rows."""
    inner = ("models", "profile")
    return {name: value for name, value in rows[0].items() if name not in inner} | {"rows": list(rows)}


def by_dtype(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A file name for each dtype of a result, by device, torch and dtype; and what goes into it."""
    found: dict[str, dict[str, Any]] = {}
    for dtype in dict.fromkeys(row["dtype"] for row in result["rows"]):
        words = (result["device"], f"torch{result['torch']}", dtype)
        name = "_".join(re.sub(r"[^a-z0-9.+-]+", "-", word.lower()).strip("-") for word in words)
        rows = [row for row in result["rows"] if row["dtype"] == dtype]
        found[f"{name}.json"] = {**result, **summary(rows)}
    return found


class _Case:
    """One dtype: the three models in it, timed on batches of any size."""

    def __init__(
        self,
        slim: SlimModel,
        host: nn.Module,
        config: BenchConfig,
        dtype: str,
        modes: Sequence[str],
        images: Tensor | None,
        tell: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self.slim, self.config, self.dtype, self.modes = slim, config, dtype, modes
        self.images, self.tell, self.clock = images, tell, clock
        self.autocast = dtype if config.autocast and dtype != "float32" else None
        self.weights = "float32" if config.autocast else dtype
        three = {"slim": slim, "baseline": host, "baseline_same_embedding": with_matmul_embed(host)}
        self.models = {name: in_dtype(model, self.weights) for name, model in three.items()}

    def row(self, size: int) -> dict[str, Any]:
        """All numbers of one batch size."""
        if any(mode.startswith("compiled") for mode in self.modes):
            torch.compiler.reset()  # else another batch size counts against the compiler's patience
        batch = self._batch(size)
        ideal = ideal_speedup(self.slim, batch)
        batch = batch.to(DTYPES[self.weights])
        prepared = {name: self._prepare(name, batch) for name in self.models}
        self._say("timing", size)
        ways = [(name, mode) for name, own in prepared.items() for mode in own.ready]
        calls = [prepared[name].ready[mode].call for name, mode in ways]
        timings = in_turns(calls, batch.device, self.config.seconds, self.clock)
        times: dict[str, dict[str, Timing]] = {name: {} for name in prepared}
        for (name, mode), timing in zip(ways, timings, strict=True):
            times[name][mode] = timing
        models = {name: _model_row(prepared[name], times[name], size) for name in prepared}
        row = {"batch_size": size, "dtype": self.dtype, "autocast": self.autocast is not None}
        return row | _numbers(models, ideal) | {"models": models} | self._profile(batch)

    def _batch(self, size: int) -> Tensor:
        """(size, C, H, W) on the models' device."""
        info, device = self.slim.host_info, next(self.slim.parameters()).device
        if self.images is None:
            return torch.randn(size, info.channels, *info.image_size, device=device)
        images = self.images[:size].to(device)
        return images.repeat(-(-size // len(images)), 1, 1, 1)[:size]

    def _prepare(self, name: str, batch: Tensor) -> Prepared:
        self._say(f"preparing {name.replace('_', ' ')}", len(batch))
        try:
            return prepare(self.models[name], batch, self.modes, self.autocast)
        except RuntimeError as error:
            if out_of_memory(error) or "not implemented" not in str(error):
                raise
            where = device_name(batch.device)
            raise PatchslimError(
                f"{where} can't compute in {self.dtype} ({first_words(error)}); choose another dtype."
            ) from None

    def _profile(self, batch: Tensor) -> dict[str, Any]:
        if not self.config.profile:
            return {}
        self._say("profiling", len(batch))
        settings: dict[str, Any] = {"autocast": self.autocast, "seconds": self.config.seconds, "clock": self.clock}
        return {"profile": profile(self.models, self.slim.host_info, batch, **settings)}

    def _say(self, what: str, size: int) -> None:
        self.tell(f"{what}, batch {size}, {self.dtype}")


def _model_row(prepared: Prepared, times: Mapping[str, Timing], size: int) -> dict[str, Any]:
    modes = {
        mode: {
            "throughput": timing.throughput(size),
            "seconds_per_batch": timing.seconds,
            "peak_memory": prepared.ready[mode].peak_memory,
        }
        for mode, timing in times.items()
    }
    best = min(times, key=lambda mode: times[mode].median)
    return {"best": best, "modes": modes, "failed": prepared.failed}


def _numbers(models: Mapping[str, Any], ideal: float) -> dict[str, Any]:
    """Each model's best mode, and what the slim model gains on both baselines."""
    found: dict[str, Any] = {"ideal_speedup": ideal}
    for name, model in models.items():
        start = "" if name == "slim" else f"{name}_"
        found |= {f"{start}mode": model["best"]}
        found |= {f"{start}{key}": value for key, value in model["modes"][model["best"]].items()}
    for name, end in BASELINES.items():
        speedup = found[f"{name}_seconds_per_batch"][1] / found["seconds_per_batch"][1]
        found |= {f"speedup{end}": speedup, f"share_of_ideal{end}": speedup / ideal}
    return found
