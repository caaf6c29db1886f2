"""What tests of kernels share: random tensors, and kernels where the interpreter runs them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from torch import Tensor

from patchslim.kernels import attention, match, merge

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(3, 9), st.sampled_from([4, 12]))
# The interpreter multiplies no bf16.
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]
# Who asks whether kernels may take over.
ASKING = ((attention, "kernels_for"), (match, "kernels_choose"), (merge, "merge_kernel_for"))


def drawn(seed: int) -> Callable[..., Tensor]:
    """Normal numbers, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)


def keys_of(normal: Callable[..., Tensor], batch: int, heads: int, n_in: int, width: int) -> Tensor:
    """As a block gives them: every second part of one product, (B, H, n_in, d_h)."""
    return normal(batch, n_in, 2, heads, width)[:, :, 0].transpose(1, 2)


def sizes_of(how: str, normal: Callable[..., Tensor], batch: int, n_in: int) -> Tensor | None:
    """How many patches tokens stand for: none say, all images the same, or each its own; (B or 1, n_in)."""
    return None if how == "none" else (3 * normal(1 if how == "shared" else batch, n_in).abs()).round() + 1


SIZES = st.sampled_from(["none", "shared", "own"])


@contextmanager
def kernels_run(answer: bool = True) -> Iterator[list[bool]]:
    """Kernels take over everywhere, or nowhere; gives a list that grows with every time that is asked."""
    asked: list[bool] = []

    def note(k: Tensor) -> bool:
        asked.append(True)
        return answer

    with ExitStack() as stack:
        for room, name in ASKING:
            stack.enter_context(patch.object(room, name, note))
        yield asked
