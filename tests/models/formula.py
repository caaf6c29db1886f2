"""Weights and pictures by formula, so that two implementations can be given the same without a random number."""

import torch
from torch import Tensor, nn

PRIME = 10007


def scattered(shape: tuple[int, ...], number: int, scale: float) -> Tensor:
    """Numbers between -scale and scale: squares modulo a prime, exact in integers, without a pattern in any matrix."""
    place = torch.arange(torch.Size(shape).numel()) + 31 * number
    residue = (place * place * 7 + place * 13) % PRIME
    return (scale * (2 * residue.double() / (PRIME - 1) - 1)).float().reshape(shape)


def fill_(model: nn.Module) -> None:
    """Give every weight and statistic numbers of its own, by its place among the sorted names.

    Counters, T2T-ViT's positions (a formula themselves) and gains' usual 1 stay.
    """
    state = model.state_dict()
    for number, name in enumerate(sorted(state)):
        tensor = state[name]
        if not tensor.is_floating_point() or (name == "pos_embed" and "tokens_to_token.project.weight" in state):
            continue
        around_one = name.endswith("running_var") or (name.endswith("weight") and tensor.ndim == 1)
        tensor.copy_(scattered(tuple(tensor.shape), number, 0.3 if tensor.ndim > 1 else 0.2) + float(around_one))


def pictures(count: int, size: int) -> Tensor:
    """(count, 3, size, size)."""
    return scattered((count, 3, size, size), 0, 2.0)
