"""Ways to run a model: as it is, compiled, or recorded as a CUDA graph; in a precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Run = Callable[[Tensor], Any]  # (B, C, H, W) → logits

RECORD_WARM_UP = 3  # calls before the recording, in which libraries set themselves up


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


def compiled(model: nn.Module, batch: Tensor, autocast: str | None = None) -> Run:
    """Inference compiled for one batch shape, whole where that works; raises whatever the compiler does."""
    try:
        return _compiled(model, batch, autocast, whole=True)
    except torch._dynamo.exc.Unsupported:  # a part that can't be traced: the rest still gains
        return _compiled(model, batch, autocast, whole=False)


def _compiled(model: nn.Module, batch: Tensor, autocast: str | None, *, whole: bool) -> Run:
    # Shapes stay fixed: kernels for any batch size are slower, and nobody asked for them here.
    run = running(torch.compile(model, fullgraph=whole, dynamic=False), batch.device, autocast)
    run(batch)  # the compiler works at the first call
    return run


def forget_compiled(models: int) -> None:
    """Begin anew with compiling, with room for so many models and batch sizes: each counts against the compiler's
    patience, and past that it would give up."""
    torch.compiler.reset()
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, models)


def recorded(run: Run, batch: Tensor) -> Callable[[], Any]:
    """Inference recorded once as a CUDA graph; each call copies the batch into the graph's own input and replays it.

    The copy is part of the call, because whoever has a new batch needs it too.
    """
    own = batch.clone()
    replay = replayed(lambda: run(own), batch.device)

    def call() -> Any:
        own.copy_(batch)
        return replay()

    return call


def replayed(call: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
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

    return Replay(graph, result, call)


@dataclass(frozen=True)
class Replay:
    """A recording. It works on the tensors of the call, weights and inputs, which have to live as long as it does: the
    memory of those let go may be another's by then, or nobody's."""

    graph: Any
    result: Any
    call: Callable[[], Any]

    def __call__(self) -> Any:
        """What the call gave when it was recorded, computed anew."""
        self.graph.replay()
        return self.result
