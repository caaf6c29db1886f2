"""What tests of kernels share: random tensors, and kernels where the interpreter runs them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(3, 9), st.sampled_from([4, 12]))
# Files that choose between kernels and tensor operations, and the kernels that they choose from.
CHOOSING = {"attention": ("attention_triton",), "merge": ("merge_triton", "pairs_triton")}


def drawn(seed: int) -> Callable[..., Tensor]:
    """Normal numbers, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)


def keys_of(normal: Callable[..., Tensor], batch: int, heads: int, n_in: int, width: int) -> Tensor:
    """As a block gives them: every second part of one product, (B, H, n_in, d_h)."""
    return normal(batch, n_in, 2, heads, width)[:, :, 0].transpose(1, 2)


def room(name: str) -> Any:
    """A module of the kernels' room."""
    return importlib.import_module(f"patchslim.kernels.{name}")


@contextmanager
def kernels_run(answer: bool = True) -> Iterator[list[bool]]:
    """Kernels take over everywhere, or nowhere; gives a list that grows with every time that is asked."""
    asked: list[bool] = []

    def note(k: Tensor) -> bool:
        asked.append(True)
        return answer

    with ExitStack() as stack:
        for name, kernels in CHOOSING.items():
            stack.enter_context(patch.object(room(name), "kernels_for", note))
            for own in kernels if find_spec("triton") else ():
                stack.enter_context(patch.object(room(name), own, room(own), create=True))
        yield asked
