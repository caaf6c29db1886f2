"""Line 7 of Algorithm 1: block l is tuned on cached features so that block l+1 sees what it saw before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]  # (block, batch) → relative error per image (B,)
Batches = Callable[[], Iterator[tuple[Tensor, ...]]]


def tune_block(block: nn.Module, loss: Loss, batches: Batches, epochs: int, learning_rate: float) -> nn.Module:
    """A tuned copy of the block; the block itself stays as it was. Everything else in `loss` is frozen."""
    tuned = copy.deepcopy(block)
    tuned.requires_grad_(True)
    optimizer = torch.optim.AdamW(tuned.parameters(), lr=learning_rate, weight_decay=0.0)
    with torch.enable_grad():
        for _ in range(epochs):
            for batch in batches():
                error = loss(tuned, batch).mean()
                optimizer.zero_grad()
                error.backward()
                optimizer.step()
    for own, parameter in zip(tuned.parameters(), block.parameters(), strict=True):
        own.requires_grad_(parameter.requires_grad)
    return tuned
