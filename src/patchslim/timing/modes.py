"""The modes in which a model runs: as it is, compiled, or recorded as a CUDA graph; in a precision."""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PatchslimError, first_words
from patchslim.timing.memory import out_of_memory, size_of, taken_by

MODES = ("eager", "compiled", "graph", "compiled-graph")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RECORD_WARM_UP = 3  # calls before the recording, in which libraries set themselves up

Call = Callable[[], Any]
Run = Callable[[Tensor], Any]  # (B, C, H, W) → logits


@dataclass(frozen=True)
class Ready:
    """A model that has run in one mode."""

    call: Call
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
            raise PatchslimError(f"There is no mode {mode!r}; choose from auto, {', '.join(MODES)}.")
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
    found, runs = Prepared(), {"eager": running(model, batch.device, autocast)}
    for mode in modes:
        how = "compiled" if mode.startswith("compiled") else "eager"
        if how in found.failed:  # what can't be compiled can't be recorded compiled
            found.failed[mode] = found.failed[how]
            continue
        try:
            if how not in runs:
                runs[how] = compiled(model, batch, autocast)
            found.ready[mode] = _ready(runs[how], model, batch, mode.endswith("graph"))
        except Exception as error:  # compilers and recordings fail in many ways, none of them the end
            if mode == "eager" or out_of_memory(error):
                raise
            found.failed[mode] = first_words(error)
    if not found.ready:
        found.ready["eager"] = _ready(runs["eager"], model, batch, False)
    return found


def _ready(run: Run, model: nn.Module, batch: Tensor, record: bool) -> Ready:
    """A way to run the model, which has run, and is recorded as a CUDA graph where that is asked for."""
    call: Call = partial(run, batch)
    call()  # libraries take their workspaces at the first call
    if record:
        call, taken = taken_by(lambda: recorded(run, batch), batch.device)
    else:
        _, taken = taken_by(call, batch.device)
    return Ready(call, None if taken is None else taken + size_of(model, batch))


def in_dtype(model: nn.Module, dtype: str) -> nn.Module:
    """The model in eval mode with weights of a precision: a copy, or the model itself where it is so already."""
    wanted = DTYPES[dtype]
    if not model.training and all(weight.dtype == wanted for weight in model.parameters()):
        return model
    return copy.deepcopy(model).to(wanted).eval()


def running(model: Any, device: torch.device, autocast: str | None = None) -> Run:
    """Inference with a model or what torch.compile made of it; `autocast` names a precision for matrix products."""
    context: AbstractContextManager[Any] = nullcontext()
    if autocast is not None:
        context = torch.autocast(device.type, dtype=DTYPES[autocast])

    def run(images: Tensor) -> Any:
        with torch.inference_mode(), context:
            return model(images)

    return run


def compiled(model: nn.Module, batch: Tensor, autocast: str | None = None, *, whole: bool = True) -> Run:
    """Inference compiled for one batch shape, whole where that works; raises whatever the compiler does."""
    # Shapes stay fixed: kernels for any batch size are slower, and nobody asked for them here.
    run = running(torch.compile(model, fullgraph=whole, dynamic=False), batch.device, autocast)
    try:
        run(batch)  # the compiler works at the first call
    except torch._dynamo.exc.Unsupported:
        if not whole:
            raise
        return compiled(model, batch, autocast, whole=False)  # a part can't be traced: the rest still gains
    return run


def forget_compiled(models: int) -> None:
    """Begin anew with compiling, with room for so many models and batch sizes: each counts against the compiler's
    patience, and past that it would give up."""
    torch.compiler.reset()
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, models)


def recorded(run: Run, batch: Tensor) -> Call:
    """Inference recorded once as a CUDA graph; each call copies the batch into the graph's own input and replays it.

    The copy is part of the call, because whoever has a new batch needs it too.
    """
    own = batch.clone()
    replay = replayed(lambda: run(own), batch.device)

    def call() -> Any:
        own.copy_(batch)
        return replay()

    return call


def replayed(call: Call, device: torch.device) -> Call:
    """A call recorded once as a CUDA graph on the tensors it works on; replaying it gives the same tensors anew."""
    with torch.cuda.device(device):
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(RECORD_WARM_UP):
                call()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()
    return partial(_replay, graph, result, call)


def _replay(graph: torch.cuda.CUDAGraph, result: Any, call: Call) -> Any:
    """What the call gave when it was recorded, computed anew. The call is kept with it: weights and inputs have to live
    as long as the recording, as the memory of those let go may be another's by then, or nobody's."""
    graph.replay()
    return result
