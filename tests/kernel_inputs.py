"""What tests of kernels share: random tensors, and kernels where the interpreter runs them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from torch import Tensor

from patchslim.kernels import attention, match

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(3, 9), st.sampled_from([4, 12]))


def drawn(seed: int) -> Callable[..., Tensor]:
    """Normal numbers, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)


def keys_of(normal: Callable[..., Tensor], batch: int, heads: int, n_in: int, width: int) -> Tensor:
    """As a block gives them: every second part of one product, (B, H, n_in, d_h)."""
    return normal(batch, n_in, 2, heads, width)[:, :, 0].transpose(1, 2)


@contextmanager
def kernels_run(answer: bool = True) -> Iterator[list[bool]]:
    """Kernels take over everywhere, or nowhere; gives a list that grows with every time that is asked."""
    asked: list[bool] = []

    def note(k: Tensor) -> bool:
        asked.append(True)
        return answer

    with patch.object(attention, "kernels_for", note), patch.object(match, "kernels_for", note):
        yield asked
