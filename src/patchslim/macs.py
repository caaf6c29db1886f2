"""Closed-form multiply-accumulates of a host and of a plan for it. One multiply-add counts as one.

Matrix products only (linear layers, the patch embedding, both products of attention), as the field counts;
equal to torch's flop counter halved, with fused attention off.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from patchslim.hosts import BlockShape, HostInfo, inspect
from patchslim.plan import Removed, SlimPlan


def block_macs(shape: BlockShape, n_in: int, n: int) -> int:
    """A block with `n_in` tokens entering and `n` computed, prefix tokens included (paper, "Computation Efficiency").

    Keys and values of n_in tokens, queries and projection of n, two products of attention, the MLP of n.
    """
    projection = shape.width * shape.attention_width
    return 2 * n_in * projection + 2 * n * projection + 2 * n * n_in * shape.attention_width + n * shape.mlp_macs


def macs_of_counts(info: HostInfo, counts: Sequence[int], removed: Removed = "drop") -> int:
    """MACs when block `l` keeps `counts[l - 1]` patches."""
    total, n_in = info.embed_macs, info.tokens
    for shape, count in zip(info.blocks, counts, strict=True):
        n = info.prefix_tokens + count
        total += block_macs(shape, n_in, n)
        n_in = info.tokens if removed == "carry" else n
    read = n_in if info.head_reads_prefix else n_in - info.prefix_tokens
    return total + info.head_macs + read * info.head_macs_per_token


def host_macs(info: HostInfo) -> int:
    """MACs of the unslimmed host."""
    return macs_of_counts(info, [info.patches] * info.depth)


def count_macs(model: nn.Module, plan: SlimPlan | None = None) -> int:
    """MACs per image of a host, of a host under a plan, or of a slim model."""
    own: SlimPlan | None = getattr(model, "plan", None)
    if own is not None and plan is None:
        plan = own
    info: HostInfo = getattr(model, "host_info", None) or inspect(model)
    if plan is None:
        return host_macs(info)
    plan.check_fits(info)
    return macs_of_counts(info, plan.counts, plan.removed)
