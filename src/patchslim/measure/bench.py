"""A slim model against its host, each in its best mode, over batch sizes and dtypes; and what its plan predicted."""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from patchslim.errors import PatchslimError
from patchslim.hosts import HostInfo, inspect, with_matmul_embed
from patchslim.macs import host_macs
from patchslim.measure.profile import profile
from patchslim.plan import SPEED, SlimPlan
from patchslim.quantise import check_way, quantised
from patchslim.slimmed import image_macs, plan_of, rectangular
from patchslim.timing import DTYPES, Clock, Contest, Timed, device_name
from patchslim.timing.memory import fitting
from patchslim.timing.modes import in_dtype, modes_for

MOST_IMAGES = 2**16  # in a batch
BASELINES = {"baseline": "", "baseline_same_embedding": "_same_embedding"}  # and how their numbers' names end
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
        if not (self.batch_sizes and self.dtypes and self.modes):
            raise PatchslimError("Give at least one batch size, one dtype and one mode.")
        check_timing(self.dtypes, self.seconds)
        if self.quantise is not None and self.autocast:
            raise PatchslimError("Quantised layers take weights of the dtype itself; leave autocast out.")


def check_timing(dtypes: Sequence[str], seconds: float) -> None:
    """Raise PatchslimError for a precision that there is not, or a time that is none."""
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise PatchslimError(f"There is no dtype {dtype!r}; choose from {', '.join(DTYPES)}.")
    if not 0 < seconds < math.inf:
        raise PatchslimError(f"The seconds to spend have to be more than 0, and {seconds} is not.")


class Forecast(BaseModel):
    """The speed-up that a plan predicts, and for what: the part of its provenance that `bench` has a use for."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    asked: float = Field(gt=1, allow_inf_nan=False)
    predicted: float = Field(gt=0, allow_inf_nan=False)
    device: str
    batch_size: int = Field(ge=1)
    dtype: str
    modes: list[str] = Field(min_length=1)

    def holds_for(self, row: Mapping[str, Any], device: str, modes: Sequence[str]) -> bool:
        """Whether a row of a benchmark on this device measures what was predicted."""
        asked = self.device, self.batch_size, self.dtype, set(self.modes), False
        return asked == (device, row["batch_size"], row["dtype"], set(modes), row["autocast"])


def forecast(plan: SlimPlan) -> Forecast | None:
    """A plan's own prediction; None where it was not made for a speed-up, or what it says of one can't be read."""
    try:
        return Forecast.model_validate(plan.provenance.get(SPEED))
    except ValidationError:
        return None


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
    where, modes = device_name(device), modes_for(config.modes, device, packed)
    if config.quantise is not None:
        for dtype in config.dtypes:
            check_way(config.quantise, device, DTYPES[dtype])
    if packed and images is None:
        raise PatchslimError("How much a run with thresholds computes depends on the images; give some with --data.")
    plan, info, rows = plan_of(slim), inspect(host), []
    own = None if plan is None else forecast(plan)
    models = {"slim": slim, "baseline": host, "baseline_same_embedding": with_matmul_embed(host)}
    for dtype in config.dtypes:
        ready = {name: in_dtype(model, "float32" if config.autocast else dtype) for name, model in models.items()}
        contest = Contest(modes, dtype, config.autocast, config.seconds, clock, tell)
        case = _Case(slim, ready, info, config, contest, images)
        for size in dict.fromkeys(config.batch_sizes):
            row = fitting(size, case.row, where)
            reduced = None if row["batch_size"] == size else row["batch_size"]
            known = own.predicted if own and own.holds_for(row, where, modes) else None
            rows.append(row | {"asked_batch_size": size, "reduced_batch": reduced, "predicted_speedup": known})
    about = {"device": where, "torch": torch.__version__, "threads": torch.get_num_threads(), "modes": modes}
    return about | {"quantised_to": config.quantise} | summary(rows)


def batch_of(size: int, info: HostInfo, device: torch.device, images: Tensor | None = None) -> Tensor:
    """(size, C, H, W) of images (K, C, H, W), repeated; else of noise, as most models don't care what is in images."""
    if images is None:
        return torch.randn(size, info.channels, *info.image_size, device=device)
    images = images[:size].to(device)
    return images.repeat(-(-size // len(images)), 1, 1, 1)[:size]


@dataclass(frozen=True)
class _Case:
    """One dtype: the `models` in it, timed on batches of any size."""

    slim: nn.Module  # in its own dtype
    models: dict[str, nn.Module]
    info: HostInfo
    config: BenchConfig
    contest: Contest
    images: Tensor | None

    def row(self, size: int) -> dict[str, Any]:
        """All numbers of one batch size."""
        weight, contest, contenders = next(self.models["slim"].parameters()), self.contest, dict(self.models)
        batch = batch_of(size, self.info, weight.device, self.images)
        ideal = host_macs(self.info) / float(image_macs(self.slim, batch).double().mean())
        batch = batch.to(weight.dtype)
        if self.config.quantise is not None:
            contest.say("quantising", size)
            for name, plain in QUANTISED.items():
                contenders[name] = quantised(self.models[plain], self.config.quantise, batch)
        row = {"batch_size": size, "dtype": contest.dtype, "autocast": contest.autocast_to is not None}
        row |= numbers(contest.time(contenders, batch), size, ideal)
        if self.config.profile:
            contest.say("profiling", size)
            how: dict[str, Any] = {"seconds": contest.seconds, "clock": contest.clock, "autocast": contest.autocast_to}
            row["profile"] = profile(self.models, self.info, batch, **how)
        return row


def numbers(timed: Mapping[str, Timed], size: int, ideal: float) -> dict[str, Any]:
    """Each model in its best mode, what the slim model gains on the baselines, and the `models` in every mode."""
    found, models = dict[str, Any](ideal_speedup=ideal), dict[str, Any]()
    for name, own in timed.items():
        modes = {
            mode: {
                "throughput": timing.throughput(size),
                "seconds_per_batch": timing.seconds,
                "peak_memory": own.prepared.ready[mode].peak_memory,
            }
            for mode, timing in own.times.items()
        }
        models[name] = {"best": own.best, "modes": modes, "failed": own.prepared.failed}
        start = "" if name == "slim" else f"{name}_"
        found |= {f"{start}{key}": value for key, value in ({"mode": own.best} | modes[own.best]).items()}
    seconds = {name: own.seconds for name, own in timed.items()}
    for name, end in BASELINES.items():
        speedup = seconds[name] / seconds["slim"]
        found |= {f"speedup{end}": speedup, f"share_of_ideal{end}": speedup / ideal}
    if "quantised" in timed:
        speedup = seconds["baseline_quantised"] / seconds["quantised"]
        found |= {
            "speedup_quantised": speedup,
            "share_of_ideal_quantised": speedup / ideal,
            "quantised_over_slim": seconds["slim"] / seconds["quantised"],
            "quantised_over_baseline": seconds["baseline"] / seconds["quantised"],
            "baseline_quantised_over_same_embedding": (
                seconds["baseline_same_embedding"] / seconds["baseline_quantised"]
            ),
        }
    return found | {"models": models}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first row's numbers on top, and all rows."""
    return {name: value for name, value in rows[0].items() if name not in ("models", "profile")} | {"rows": list(rows)}


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
