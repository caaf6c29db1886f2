"""What speed-up to expect of a slim model on the device at hand: a short timing, in the mode that needs no compiling.
`bench` takes its time and tries every mode."""

import copy
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torch import Tensor, nn

from patchslim.errors import PatchslimError, PatchslimWarning
from patchslim.hosts import open_host
from patchslim.methods import Task, sketches_beside
from patchslim.plan import SPEED, SlimPlan
from patchslim.slimmed import assembled_, rectangular
from patchslim.timing.latency import Contest, described, device_name
from patchslim.timing.memory import fitting
from patchslim.timing.modes import DTYPES, in_dtype

EXPECTED, TIMING = "expected_speedup", "timing"  # in a run's metrics
SECONDS, ROUNDS = 1.0, (3, 20)  # for each model; at least and at most
COPIED = "device", "threads", "torch", "batch_size", "dtype", "mode", "host_mode"


@dataclass(frozen=True)
class _Quick:
    """Models timed beside the host of a task, on as many images as were asked for."""

    task: Task
    images: Tensor  # (K, C, H, W)
    packed: bool = False

    def __call__(self, slim: nn.Module) -> dict[str, Any]:
        """Times as fast as the host, and how that was timed."""
        device, dtype = self.task.device, self.task.target.dtype
        # A recording takes no time to make, and shows a GPU's speed much as a compiled network does.
        mode = "graph" if device.type == "cuda" and not self.packed else "eager"

        def tell(what: str) -> None:
            self.task.progress({"event": "timing", "what": what})

        def attempt(size: int) -> dict[str, Any]:
            batch = self.images[:size].repeat(math.ceil(size / len(self.images[:size])), 1, 1, 1)[:size]
            models = {"slim": slim, "host": self.task.host.model}
            models = {name: in_dtype(model, dtype) for name, model in models.items()}
            contest = Contest([mode], dtype, False, SECONDS, perf_counter, tell, ROUNDS)
            found = contest.time(models, batch.to(device, DTYPES[dtype]))
            own, host = found["slim"], found["host"]
            # Turns are few, and what else the machine does only ever adds to them: the faster ones tell.
            speedup = host.times[host.best].low / own.times[own.best].low
            about = {"batch_size": size, "dtype": dtype, "mode": own.best, "host_mode": host.best}
            return {EXPECTED: speedup, TIMING: described(device) | about}

        return fitting(self.task.target.batch_size, attempt, device_name(device))


def expected_speedup(task: Task, slim: nn.Module, plan: SlimPlan) -> dict[str, Any]:
    """For a run's metrics: how many times as fast as its host a slim model is here, and how that was timed.

    A plan that was made for a speed-up was timed already. Where the slim model is no faster than the host, a warning
    names the fastest of our other methods that is, at the same MACs, if there is one.
    """
    if SPEED in plan.provenance:
        speed = plan.provenance[SPEED]
        return {EXPECTED: speed["predicted"], TIMING: {name: speed.get(name) for name in COPIED}}
    try:
        found = _timed(task, slim, plan)
    except PatchslimError as error:  # a model that can't be timed is a model
        warnings.warn(f"How fast the slim model is here is not known: {error}", PatchslimWarning, stacklevel=2)
        return {EXPECTED: None}
    if found[EXPECTED] < 1:
        warnings.warn(advice(found, plan), PatchslimWarning, stacklevel=2)
    return found


def _timed(task: Task, slim: nn.Module, plan: SlimPlan) -> dict[str, Any]:
    pixels = next(images for images, _ in task.images.batches(task.target.batch_size))
    found = _Quick(task, pixels, packed=not rectangular(slim))(slim)
    if found[EXPECTED] < 1:
        quick, sketches = _Quick(task, pixels), sketches_beside(plan.method, task.info, plan)
        others = {name: quick(_sketched(task, other))[EXPECTED] for name, other in sketches.items()}
        found[TIMING]["other_methods"] = others
    return found


def _sketched(task: Task, plan: SlimPlan) -> nn.Module:
    """A slim model that nobody taught: time does not depend on it."""
    return assembled_(open_host(copy.deepcopy(task.host.model)), plan).eval()


def where(timing: Mapping[str, Any]) -> str:
    """The device, batch, precision and mode of a timing."""
    return f"{timing['device']}, batch {timing['batch_size']}, {timing['dtype']}, {timing['mode']}"


def advice(found: Mapping[str, Any], plan: SlimPlan) -> str:
    """What to say of a model that is no faster than its host."""
    timing = found[TIMING]
    here = f"The slim model is not faster than its host here ({found[EXPECTED]:.2f}×; {where(timing)})"
    others = timing["other_methods"]
    best = max(others, key=others.__getitem__, default=None)
    if best is not None and others[best] > max(1.0, found[EXPECTED]):
        return f"{here}; at the same MACs --method {best} runs at {others[best]:.2f}×."
    if not any(plan.choosing):
        return f"{here}, because it keeps all patches; ask for fewer MACs, or for a speed-up."
    return f"{here}, nor would another method be at the same MACs; try a larger --batch-size, or fewer MACs."
