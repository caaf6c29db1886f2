"""The modes in which `bench` runs a model: which are asked for, and a model made ready in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PatchslimError, first_words
from patchslim.timing.memory import out_of_memory, size_of, taken_by
from patchslim.timing.running import Run, compiled, recorded, running

MODES = ("eager", "compiled", "graph", "compiled-graph")


@dataclass(frozen=True)
class Ready:
    """A model that has run in one mode."""

    call: Callable[[], Any]
    peak_memory: int | None  # bytes of weights, batch and what the call takes at its peak


@dataclass
class Prepared:
    """A model in every mode that works for it, and why the others don't."""

    ready: dict[str, Ready] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def modes_for(asked: Sequence[str], device: torch.device, packed: bool) -> list[str]:
    """The modes to time; `auto` is all that go with the device, on a CPU only eager, as compiling takes its time."""
    for mode in asked:
        if mode not in (*MODES, "auto"):
            raise PatchslimError(f"There is no mode {mode}; choose from auto, {', '.join(MODES)}.")
    wanted = set(asked) - {"auto"}
    if packed and wanted - {"eager"}:
        raise PatchslimError(
            "A run with thresholds has batches of many shapes and can't be compiled whole or recorded; take mode eager."
        )
    if device.type != "cuda" and any(mode.endswith("graph") for mode in wanted):
        raise PatchslimError(f"A CUDA graph needs a CUDA device and this is {device.type}; take eager or compiled.")
    if "auto" in asked:
        wanted |= set(MODES) if device.type == "cuda" and not packed else {"eager"}
    return [mode for mode in MODES if mode in wanted]


def prepare(model: nn.Module, batch: Tensor, modes: Sequence[str], autocast: str | None = None) -> Prepared:
    """Make a model ready in each mode and run it once; eager stands in where no other works."""
    found = Prepared()
    runs = {"eager": running(model, batch.device, autocast)}
    for mode in modes:
        if _how(mode) in found.failed:  # what can't be compiled can't be recorded compiled
            found.failed[mode] = found.failed[_how(mode)]
            continue
        try:
            found.ready[mode] = _ready(mode, model, batch, runs, autocast)
        except Exception as error:  # compilers and recordings fail in many ways, none of them the end
            if mode == "eager" or out_of_memory(error):
                raise
            found.failed[mode] = first_words(error)
    if not found.ready:
        found.ready["eager"] = _ready("eager", model, batch, runs, autocast)
    return found


def _how(mode: str) -> str:
    """What a mode runs or records: eager or compiled."""
    return "compiled" if mode.startswith("compiled") else "eager"


def _ready(mode: str, model: nn.Module, batch: Tensor, runs: dict[str, Run], autocast: str | None) -> Ready:
    """`runs` remembers what was compiled, for the recording of it."""
    how = _how(mode)
    if how not in runs:
        runs[how] = compiled(model, batch, autocast)
    call: Callable[[], Any] = partial(runs[how], batch)
    call()  # libraries take their workspaces at the first call
    if mode.endswith("graph"):
        made: list[Callable[[], Any]] = []
        taken = taken_by(lambda: made.append(recorded(runs[how], batch)), batch.device)
        call = made[0]
    else:
        taken = taken_by(call, batch.device)
    return Ready(call, None if taken is None else taken + size_of(model, batch))
