"""One run of a network for training: logits, what the head reads, and the tokens of one block."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import Tensor, nn

from patchslim.hosts import Host, open_slim
from patchslim.recover.checks import check_slim
from patchslim.slim import SlimBlock, State


def open_student(slim: nn.Module) -> Host:
    """A copy to train."""
    return open_slim(copy.deepcopy(slim).eval(), check_slim(slim))


class Outputs(NamedTuple):
    """What a network gives: logits (B, classes), features (B, d), and the output of the block asked for."""

    logits: Tensor
    features: Tensor
    inner: Any = None  # State of a slim model, Z_l (B, p + N, d) of a host


def outputs(host: Host, images: Tensor, layer: int | None = None, tracks: bool = False) -> Outputs:
    """Run a network, slim or not, and keep the output of block `layer`.

    With `tracks` a slim model's tokens know which input patches they stand for.
    """
    x: Any = host.embed(images)
    inner: Any = None
    for number, block in enumerate(host.blocks, start=1):
        state, x = through(block, x, tracks)
        if number == layer:
            inner = state
    return Outputs(host.logits(x), host.features(x), inner)


def through(block: Any, x: Any, tracks: bool = False) -> tuple[Any, Any]:
    """One block of a network, slim or not: its output, and what the next block or the head is given."""
    if not isinstance(block, SlimBlock):
        x = block(x, None)  # no mask: some layers of transformers have to be told
        return x, x
    state: State = block.run(block.enter(x, tracks))
    return state, block.leave(state)
