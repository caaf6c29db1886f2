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

from patchslim.errors import PatchslimError
from patchslim.hosts import inspect, with_matmul_embed
from patchslim.macs import host_macs
from patchslim.measure.forecast import forecast
from patchslim.measure.numbers import model_row, numbers
from patchslim.measure.profile import profile
from patchslim.quantise import check_way, quantised
from patchslim.slim import image_macs, plan_of, rectangular
from patchslim.timing import DTYPES, Clock, Contest, device_name
from patchslim.timing.memory import fitting
from patchslim.timing.modes import modes_for
from patchslim.timing.running import in_dtype

MOST_IMAGES = 2**16  # in a batch
QUANTISED = {"quantised": "slim", "baseline_quantised": "baseline_same_embedding"}  # and what each is made from


@dataclass(frozen=True)
class BenchConfig:
    """What to time. `seconds` go to each model in each mode; weights are cast to the dtype unless it is autocast."""

    batch_sizes: Sequence[int] = (32,)
    dtypes: Sequence[str] = ("float32",)
    modes: Sequence[str] = ("auto",)
    seconds: float = 3.0
    autocast: bool = False
    profile: bool = False
    quantise: str | None = None  # time quantised models too: int8 or float8

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
        if self.quantise is not None and self.autocast:
            raise PatchslimError("Quantised layers take weights of the dtype itself; leave autocast out.")


def bench(
    slim: nn.Module,
    host: nn.Module,
    config: BenchConfig | None = None,
    *,
    images: Tensor | None = None,
    tell: Callable[[str], None] = lambda what: None,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Throughput of a slim model, of its host, and of the host with the slim model's patch embedding; of the slim
    model and the latter once more with quantised layers, where the config asks for it.

    `images` (K, C, H, W) are repeated to fill a batch; noise does unless the plan has thresholds. Models are timed
    where they are. The result has a row for every dtype and batch size, and the first row's numbers once more on top.
    `tell` hears what is being done.
    """
    config = config or BenchConfig()
    device, packed = next(slim.parameters()).device, not rectangular(slim)
    modes = modes_for(config.modes, device, packed)
    if config.quantise is not None:
        for dtype in config.dtypes:
            check_way(config.quantise, device, DTYPES[dtype])
    if packed and images is None:
        raise PatchslimError("How much a run with thresholds computes depends on the images; give some with --data.")
    plan = plan_of(slim)
    own, rows = forecast(plan) if plan is not None else None, []
    for dtype in config.dtypes:
        case = _Case(slim, host, config, dtype, modes, images, tell, clock)
        for size in dict.fromkeys(config.batch_sizes):
            row = fitting(size, case.row, device_name(device))
            reduced = None if row["batch_size"] == size else row["batch_size"]
            known = own.predicted if own and own.holds_for(row, device_name(device), modes) else None
            rows.append(row | {"asked_batch_size": size, "reduced_batch": reduced, "predicted_speedup": known})
    return about(device, modes) | {"quantised_to": config.quantise} | summary(rows)


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
    """A file name for each dtype of a result, by device, torch, dtype and quantisation; and what goes into it."""
    found: dict[str, dict[str, Any]] = {}
    for dtype in dict.fromkeys(row["dtype"] for row in result["rows"]):
        words = [result["device"], f"torch{result['torch']}", dtype]
        words += [result["quantised_to"]] if result.get("quantised_to") else []
        name = "_".join(re.sub(r"[^a-z0-9.+-]+", "-", word.lower()).strip("-") for word in words)
        rows = [row for row in result["rows"] if row["dtype"] == dtype]
        found[f"{name}.json"] = {**result, **summary(rows)}
    return found


class _Case:
    """One dtype: the three models in it, timed on batches of any size."""

    def __init__(
        self,
        slim: nn.Module,
        host: nn.Module,
        config: BenchConfig,
        dtype: str,
        modes: Sequence[str],
        images: Tensor | None,
        tell: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self.slim, self.config, self.dtype, self.images = slim, config, dtype, images
        self.info = inspect(host)
        self.contest = Contest(modes, dtype, config.autocast, config.seconds, clock, tell)
        self.weights = "float32" if config.autocast else dtype
        three = {"slim": slim, "baseline": host, "baseline_same_embedding": with_matmul_embed(host)}
        self.models = {name: in_dtype(model, self.weights) for name, model in three.items()}

    def row(self, size: int) -> dict[str, Any]:
        """All numbers of one batch size."""
        batch = self._batch(size)
        ideal = host_macs(self.info) / float(image_macs(self.slim, batch).double().mean())
        batch = batch.to(DTYPES[self.weights])
        contenders = self.models | self._quantised(batch)
        models = {name: model_row(timed, size) for name, timed in self.contest.time(contenders, batch).items()}
        row = {"batch_size": size, "dtype": self.dtype, "autocast": self.contest.autocast_to is not None}
        return row | numbers(models, ideal) | {"models": models} | self._profile(batch)

    def _quantised(self, batch: Tensor) -> dict[str, nn.Module]:
        """The slim model and the host, both quantised, where that is asked for."""
        if self.config.quantise is None:
            return {}
        self.contest.say("quantising", len(batch))
        return {name: quantised(self.models[plain], self.config.quantise, batch) for name, plain in QUANTISED.items()}

    def _batch(self, size: int) -> Tensor:
        """(size, C, H, W) on the models' device."""
        info, device = self.info, next(self.slim.parameters()).device
        if self.images is None:
            return torch.randn(size, info.channels, *info.image_size, device=device)
        images = self.images[:size].to(device)
        return images.repeat(-(-size // len(images)), 1, 1, 1)[:size]

    def _profile(self, batch: Tensor) -> dict[str, Any]:
        if not self.config.profile:
            return {}
        self.contest.say("profiling", len(batch))
        settings: dict[str, Any] = {"seconds": self.config.seconds, "clock": self.contest.clock}
        settings["autocast"] = self.contest.autocast_to
        return {"profile": profile(self.models, self.info, batch, **settings)}
