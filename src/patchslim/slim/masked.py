"""The masked full-shape reference: the paper's Eq. 2 to the letter, with the host's own blocks. Slow; the oracle.

Nothing is dropped here. Every block runs on all tokens in the host's order; masks decide which rows take the new value
and, for `drop`, which keys may be attended to.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from patchslim.hosts import open_host
from patchslim.plan import SlimPlan


def masked_logits(model: nn.Module, plan: SlimPlan, images: Tensor) -> Tensor:
    """The slimmed network's logits from the unslimmed host: images (B, C, H, W) → (B, classes)."""
    host = open_host(model)
    plan.check_fits(host.info)
    prefix = host.info.prefix_tokens
    x = host.embed(images)
    alive = torch.ones(host.info.tokens, dtype=torch.bool, device=x.device)
    for block, kept in zip(host.blocks, plan.kept, strict=True):
        computed = torch.zeros_like(alive)  # diag(m_l)
        computed[:prefix] = True
        computed[torch.tensor(kept, dtype=torch.long, device=x.device) + prefix] = True
        out = block(x, attn_mask=alive.expand(1, 1, len(alive), len(alive)))
        x = torch.where(computed[:, None], out, x)
        if plan.removed == "drop":
            alive = computed
    return host.logits(x[:, alive])
