"""The masked full-shape reference: the paper's Eq. 2 to the letter, with the host's own blocks. Slow; the oracle.

Nothing is dropped here. Every block runs on all tokens in the host's order; masks decide which rows take the new value
and which keys may be attended to. Where images differ they go one by one. What is kept, and what joins what, the
`reference` of each step says in plain loops.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PlanError
from patchslim.hosts import Host, open_host
from patchslim.plan import SlimPlan
from patchslim.slimmed.assemble import apply
from patchslim.slimmed.block import SlimBlock
from patchslim.steps import Seen


@torch.no_grad()
def masked_logits(
    model: nn.Module, plan: SlimPlan, images: Tensor, weights: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The slimmed network's logits from the unslimmed host: images (B, C, H, W) → (B, classes).

    `weights` are those of the steps, as in `apply`; other weights are the model's own.
    """
    host = open_host(model)
    plan.check_fits(host.info)
    own = [module.step for module in apply(model, plan, weights).modules() if isinstance(module, SlimBlock)]
    x = host.embed(images)
    parts = x.split(1) if plan.per_image else [x]
    try:
        return torch.cat([_logits(host, plan, own, part) for part in parts])
    except ValueError as error:
        raise PlanError(f"This plan can't be run masked: {error}.") from None


def _logits(host: Host, plan: SlimPlan, own: list[Any], x: Tensor) -> Tensor:
    """x (B, p + N, d) of images that all go the same way → (B, classes)."""
    prefix, patches = host.info.prefix_tokens, host.info.patches
    order = list(range(patches)) if plan.order is None else plan.order
    alive, size = order, [1.0] * patches
    for layer, step in enumerate(plan.steps, start=1):
        choice = step.reference(Seen(host, layer, x, alive, size, own[layer - 1], order[: plan.counts[layer - 1]]))
        rows, new_size = x.clone(), list(size)
        for patch in choice.kept:
            group = [patch, *(gone for gone, target in choice.into.items() if target == patch)]
            new_size[patch] = sum(size[member] for member in group)
            if len(group) > 1:
                rows[:, prefix + patch] = _average({one: x[:, prefix + one] for one in group}, choice.weight)
        computed = [*range(prefix), *(prefix + patch for patch in choice.kept)]
        out = x.clone()
        out[:, computed] = _block(host, layer, rows, x, alive, size)[:, computed]
        x, size = out, new_size
        alive = alive if choice.stays else choice.kept
    return host.logits(x[:, [*range(prefix), *(prefix + patch for patch in sorted(alive))]])


def _block(host: Host, layer: int, rows: Tensor, x: Tensor, alive: list[int], size: list[float]) -> Tensor:
    """The host's own block with queries from `rows`, keys and values from `x`, both (B, p + N, d).

    It runs on both at once, `rows` first; only living tokens of `x` may be attended to, log(size) on their logits.
    """
    tokens, prefix = x.shape[1], host.info.prefix_tokens
    bias = torch.full((2 * tokens,), -torch.inf, device=x.device)
    bias[tokens : tokens + prefix] = 0
    for patch in alive:
        bias[tokens + prefix + patch] = torch.tensor(size[patch]).log()
    block: Any = host.blocks[layer - 1]
    mask = bias.to(x).expand(1, 1, 2 * tokens, 2 * tokens)
    found: Tensor = block(torch.cat([rows, x], dim=1), mask)[:, :tokens]
    return found


def _average(members: Mapping[int, Tensor], weight: Mapping[int, float]) -> Tensor:
    """The weighted mean of some tokens (B, d), at their mean length."""
    total = sum(weight[patch] for patch in members)
    shares = [(token, weight[patch] / total) for patch, token in members.items()]
    mean = torch.stack([token * share for token, share in shares]).sum(dim=0)
    length = torch.stack([token.norm(dim=-1, keepdim=True) * share for token, share in shares]).sum(dim=0)
    scaled: Tensor = mean * length / mean.norm(dim=-1, keepdim=True)
    return scaled
