"""The slim model: the host with blocks that really compute fewer tokens.

Patches are sorted once, by how long they stay. Each block's kept set is then a prefix, and slimming is a slice: no
index tensor after the entrance, nothing for a compiler or an exporter to trip over.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PlanError, UnsupportedModel
from patchslim.hosts import HostInfo, open_host
from patchslim.hosts.base import RunBlock
from patchslim.hosts.weights import load_part_
from patchslim.plan import SlimPlan, make_plan


class SlimBlock(nn.Module):
    """A host block that computes its first `keep` tokens. It holds the block's parts under their own names."""

    order: Tensor | None
    restore: Tensor | None

    def __init__(self, block: nn.Module, run: RunBlock, keep: int, carry: bool) -> None:
        super().__init__()
        for name, child in block.named_children():
            self.add_module(name, child)
        for name, parameter in block.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.run, self.keep, self.carry = run, keep, carry
        self.tokens: int | None = None
        self.register_buffer("order", None, persistent=False)
        self.register_buffer("restore", None, persistent=False)
        self.train(block.training)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n_in, d) → (B, keep, d), or (B, n_in, d) when removed patches are carried along."""
        if self.tokens is not None and x.shape[1] != self.tokens:
            raise PlanError(
                f"This slim model takes {self.tokens} tokens and got {x.shape[1]}; "
                "a plan holds for one image size, so make another for this one."
            )
        if self.order is not None:
            x = x.index_select(1, self.order)
        x = self.run(self, x, self.keep, self.carry)
        return x if self.restore is None else x.index_select(1, self.restore)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"keep={self.keep}, carry={self.carry}"


def apply(model: nn.Module, plan: SlimPlan, tuned: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A new model of the host's own class that computes what the plan keeps; the given model stays as it was.

    `tuned` are weights under the host's names that replace the host's. The result has the host's parameters under the
    host's names, so its state dict loads back into the host; `.plan` and `.host_info` tell what it is.
    """
    if is_slim(model):
        raise UnsupportedModel("This model is slim already; apply the plan to the host it was made from.")
    host = open_host(copy.deepcopy(model))
    plan.check_fits(host.info)
    if tuned:
        load_part_(host.model, tuned)
    spec = _spec_or_none(host)
    carry = plan.removed == "carry"
    prefix = host.info.prefix_tokens
    pairs = zip(host.blocks, plan.counts, strict=True)
    blocks = [SlimBlock(block, host.run_block, prefix + count, carry) for block, count in pairs]
    _sort_at_entrance(blocks, plan, host.info, next(host.model.parameters()).device)
    slim: Any = host.slimmed_(blocks)
    slim.plan, slim.host_info, slim.host_spec = plan, host.info, spec
    return slim  # type: ignore[no-any-return]


def _spec_or_none(host: Any) -> Mapping[str, Any] | None:
    """What `save` needs; a model that can't be described can still be slimmed, only not saved as a run."""
    try:
        return host.spec()  # type: ignore[no-any-return]
    except UnsupportedModel:
        return None


def _sort_at_entrance(blocks: list[SlimBlock], plan: SlimPlan, info: HostInfo, device: torch.device) -> None:
    """Let the first block sort the tokens, and the last one put carried tokens back in place."""
    blocks[0].tokens = info.tokens
    places = list(range(info.prefix_tokens)) + [info.prefix_tokens + patch for patch in plan.order]
    if places == sorted(places):
        return
    blocks[0].order = torch.tensor(places, device=device)
    if plan.removed == "carry":
        blocks[-1].restore = blocks[0].order.argsort()


def is_slim(model: nn.Module) -> bool:
    """Whether `apply` made this model."""
    return isinstance(getattr(model, "plan", None), SlimPlan)


def full_plan(model: nn.Module) -> SlimPlan:
    """The plan that keeps every patch in every block: the host itself."""
    info = open_host(model).info
    return make_plan(info, [list(range(info.patches))] * info.depth, provenance={"method": "everything kept"})
