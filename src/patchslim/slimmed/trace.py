"""What a slim model's blocks give, one by one: where its tokens come from, and what each image takes."""

from typing import Any

import torch
from torch import Tensor, nn

from patchslim.hosts import Host, copied, like_weights, open_slim, unwrapped
from patchslim.macs import plan_macs, steps_macs
from patchslim.plan import SlimPlan
from patchslim.slimmed.block import SlimBlock, State


def states_of(host: Host, x: Tensor, tracks: bool = False) -> list[State]:
    """What leaves each slim block: x = Z_0 (B, p + N, d). With `tracks` tokens know which patches they stand for."""
    found: list[State] = []
    for block in host.blocks:
        assert isinstance(block, SlimBlock)
        found.append(block.run(found[-1] if found else block.enter(x, tracks)))
    return found


@torch.inference_mode()
def sources(slim: nn.Module, images: Tensor) -> list[Tensor]:
    """For each block the input patches that every computed patch token stands for.

    images (B, C, H, W) → per block a boolean (B, n, N): row j marks the patches of token j, prefix tokens left out.
    Where images keep different numbers, n is the largest and the rows an image lacks are all False.
    """
    host, plan = _opened(slim)
    states = states_of(host, host.embed(like_weights(host.model, images)), tracks=True)
    rows = [state.rows(host.info.prefix_tokens) for state in states]
    if not plan.rectangular:
        return rows
    return [own[:, :count] if count < own.shape[1] else own for own, count in zip(rows, plan.counts, strict=True)]


@torch.inference_mode()
def image_macs(slim: nn.Module, images: Tensor) -> Tensor:
    """MACs that each image takes: images (B, C, H, W) → (B,) of integers."""
    host, plan = _opened(slim)
    if plan.rectangular:
        return torch.full((len(images),), plan_macs(host.info, plan))
    return macs_of_states(host, plan, states_of(host, host.embed(like_weights(host.model, images))))


def macs_of_states(host: Host, plan: SlimPlan, states: list[State]) -> Tensor:
    """MACs of each image of a batch, from what left each block: (B,) of integers."""
    counts = zip(*(state.counts(host.info.prefix_tokens) for state in states), strict=True)
    return torch.tensor([steps_macs(host.info, plan.steps, own) for own in counts])


def _opened(slim: Any) -> tuple[Host, SlimPlan]:
    """The model as a host whose every part is in eval mode; the model itself is left as it was."""
    model: Any = unwrapped(slim)
    trains = any(module.training for module in model.modules())
    return open_slim(copied(model).eval() if trains else model), model.plan
