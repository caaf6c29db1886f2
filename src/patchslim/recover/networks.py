"""Both networks of a recovery: opened, run up to any block, and the rows that a slim block computes beside the host's.

What the host says about the row of a patch token is the mean over the input patches that the token stands for.
"""

from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchslim.errors import RecoverError
from patchslim.hosts import Host, HostInfo, copied, open_host, open_slim, unwrapped
from patchslim.plan import SlimPlan
from patchslim.slimmed import SlimBlock, State, made_from
from patchslim.steps.packed import Packed

NAMES = ("name", "family", "parameters", "blocks")  # of hosts: what may differ, and what follows from the rest


def open_student(slim: nn.Module) -> Host:
    """A copy to train, in fp32: steps of training are lost in half precision."""
    return open_slim(copied(unwrapped(slim)).eval().float())


def open_teacher(teacher: nn.Module, slim: nn.Module, info: HostInfo) -> Host:
    """A frozen copy of the original network on the slim model's device; RecoverError when it is another network."""
    if made_from(teacher) is not None:
        raise RecoverError("The teacher is a slim model; give the network that this one was made from.")
    host = open_host(copied(unwrapped(teacher)).eval().float().requires_grad_(False).to(next(slim.parameters()).device))
    own, other = asdict(info), asdict(host.info)
    for name in own:
        if name not in NAMES and own[name] != other[name]:
            raise RecoverError(
                f"The teacher is another network: {name.replace('_', ' ')} is {other[name]}, the slim model was made "
                f"from one with {own[name]}; give that one."
            )
    return host


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


def pair_rows(plan: SlimPlan, layer: int, output: State, z: Tensor) -> tuple[Tensor, Tensor]:
    """(computed, reference), of one shape, from block `layer`'s output, whose tokens know what they stand for, and the
    host's Z_l (B, p + N, d).

    Both are (B, p + n, d); of a packed batch (1, T, d).
    """
    prefix, count = plan.host.prefix_tokens, plan.counts[layer - 1]
    if isinstance(output, Packed):
        return output.x, _packed_rows(output, z, prefix)
    stands = output.rows(prefix)[:, :count].to(z.dtype)  # (B, n, N); patches that a block carries along come after n
    patches = stands @ z[:, prefix:] / stands.sum(dim=-1, keepdim=True)
    return output.x[:, : prefix + count], torch.cat([z[:, :prefix], patches], dim=1)


def _packed_rows(output: Packed, z: Tensor, prefix: int) -> Tensor:
    """The host's rows of the tokens that a packed batch keeps: (B, p + N, d) → (1, T, d)."""
    length = torch.tensor(output.lengths, device=z.device)
    image = torch.arange(len(length), device=z.device).repeat_interleave(length)
    within = torch.arange(len(image), device=z.device) - (length.cumsum(0) - length)[image]
    row = torch.where(within < prefix, within, prefix + output.place)
    return z.flatten(0, 1)[image * z.shape[1] + row][None]
