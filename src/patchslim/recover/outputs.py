"""One run of a network for training: logits, what the head reads, and the tokens of one block."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from patchslim.hosts import Host, open_slim
from patchslim.recover.checks import check_slim
from patchslim.recover.rows import State
from patchslim.slim.model import watching


def open_student(slim: nn.Module) -> Host:
    """A copy to train."""
    return open_slim(copy.deepcopy(slim).eval(), check_slim(slim))


class Outputs(NamedTuple):
    """What a network gives: logits (B, classes), features (B, d), and the output of the block asked for."""

    logits: Tensor
    features: Tensor
    inner: Any = None  # State of a slim model, Z_l of a host


def outputs(host: Host, images: Tensor, layer: int | None = None) -> Outputs:
    """Run a network, slim or not, and keep the output of block `layer`."""
    x: Any = host.embed(images)
    inner: State | None = None
    for number, block in enumerate(host.blocks, start=1):
        x = block(x, None)  # no mask: some layers of transformers have to be told
        if number == layer:
            inner = x
    return Outputs(host.logits(x), host.features(x), inner)


@contextmanager
def tracking(host: Host, wanted: bool = True) -> Iterator[None]:
    """Have a slim model's tokens know which input patches they stand for."""
    if not wanted:
        yield
        return
    with watching(host.model, lambda tokens: None):
        yield
