"""Closed-form multiply-accumulates of a host and of a plan for it. One multiply-add counts as one.

Matrix products only (linear layers, the patch embedding, both products of attention), as the field counts;
equal to torch's flop counter halved, with fused attention off. What choosing and merging patches costs is counted too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from patchslim.hosts import BlockShape, HostInfo, inspect
from patchslim.plan import DistanceSpec, Groups, PredictorSpec, Removed, Select, SlimPlan


def block_macs(shape: BlockShape, n_in: int, n: int) -> int:
    """A block with `n_in` tokens entering and `n` computed, prefix tokens included (paper, "Computation Efficiency").

    Keys and values of n_in tokens, queries and projection of n, two products of attention, the MLP of n.
    """
    projection = shape.width * shape.attention_width
    return 2 * n_in * projection + 2 * n * projection + 2 * n * n_in * shape.attention_width + n * shape.mlp_macs


def merge_macs(shape: BlockShape, kept: int, gone: int) -> int:
    """Averaging `gone` patches into some of `kept`: a 0/1 matrix times tokens, their weight, size and length."""
    return kept * gone * (shape.width + 3)


def match_macs(info: HostInfo, shape: BlockShape, patches: int, distance: DistanceSpec | None = None) -> int:
    """Pairing `patches` patches by keys or by features of their own, and the class token's attention beside it."""
    importance = importance_macs(info, shape, patches)
    if distance is None:
        return (patches + 1) // 2 * (patches // 2) * shape.attention_width + importance
    # Which half may go is asked of all pairs, and what a patch weighs is one channel more.
    return patches * shape.width * (distance.channels + 1) + patches**2 * distance.channels + importance


def importance_macs(info: HostInfo, shape: BlockShape, patches: int) -> int:
    """The class token's own row of attention, where one is read."""
    return (shape.width + info.prefix_tokens + patches) * shape.attention_width if info.reads_class else 0


def predictor_macs(info: HostInfo, spec: PredictorSpec, patches: int) -> int:
    """One G on `patches` patches."""
    if spec.kind == "pool":
        return info.patches**2
    rows = patches + 1 if spec.kind == "context" else patches  # the average patch is one more row
    return rows * info.width * spec.hidden + patches * spec.hidden


def choice_macs(
    info: HostInfo,
    layer: int,
    patches: int,
    kept: int,
    *,
    select: Select = "static",
    merges: bool = False,
    groups: Groups | None = None,
    predictor: PredictorSpec | None = None,
    distance: DistanceSpec | None = None,
) -> int:
    """What block `layer` (from 1) spends on choosing `kept` of `patches` patches and on merging the others."""
    shape, gone = info.blocks[layer - 1], patches - kept
    if gone == 0 or kept == 0:
        return 0
    if select == "static" and not merges:
        return 0
    if groups == "own":
        likeness = kept * gone * shape.attention_width
        return likeness + importance_macs(info, shape, patches) + merge_macs(shape, kept, gone)
    if select == "static":
        return kept * gone * shape.width  # constant weights; sizes are known beforehand
    total = predictor_macs(info, predictor, patches) if predictor is not None else 0
    if select == "matched" or merges:
        total += match_macs(info, shape, patches, distance)
    if merges:
        total += merge_macs(shape, patches // 2, gone)  # only every second patch takes any in
    return total


def macs_of_counts(info: HostInfo, counts: Sequence[int], removed: Removed = "drop", **choice: Any) -> int:
    """MACs when block `l` keeps `counts[l - 1]` patches.

    `choice` is what `choice_macs` takes: select, groups, predictor, distance; and `drops`, the blocks that drop where
    others merge.
    """
    drops = choice.pop("drops", ())
    total, n_in = info.embed_macs, info.tokens
    for layer, (shape, count) in enumerate(zip(info.blocks, counts, strict=True), start=1):
        n = info.prefix_tokens + count
        total += block_macs(shape, n_in, n)
        if removed != "carry":
            merges = removed == "merge" and layer not in drops
            total += choice_macs(info, layer, n_in - info.prefix_tokens, count, merges=merges, **choice)
        n_in = info.tokens if removed == "carry" else n
    return total + head_macs(info, n_in)


def head_macs(info: HostInfo, tokens: int) -> int:
    """Pooling and classifier when `tokens` leave the last block, prefix included."""
    read = tokens if info.head_reads_prefix else tokens - info.prefix_tokens
    return info.head_macs + read * info.head_macs_per_token


def host_macs(info: HostInfo) -> int:
    """MACs of the unslimmed host."""
    return macs_of_counts(info, [info.patches] * info.depth)


def plan_macs(info: HostInfo, plan: SlimPlan) -> int:
    """MACs per image under a plan; the average over its calibration images where images differ."""
    if plan.predictor is not None and plan.predictor.average_macs is not None:
        return plan.predictor.average_macs
    return macs_under(info, plan, plan.counts)


def macs_under(info: HostInfo, plan: SlimPlan, counts: Sequence[int]) -> int:
    """MACs of one image that keeps `counts` under a plan."""
    if plan.into is not None:
        return _static_merge_macs(info, plan)
    if plan.predictor is not None and plan.mode == "threshold":
        # G runs where there is a choice, also for an image that turns out to keep all it has.
        above, least = (info.patches, *counts), max(1, plan.counts[-1])
        asked = [above[layer - 1] for layer in plan.choosing if above[layer - 1] > least]
        return macs_of_counts(info, counts) + sum(predictor_macs(info, plan.predictor, n) for n in asked)
    choice: dict[str, Any] = {name: getattr(plan, name) for name in ("select", "groups", "predictor", "distance")}
    return macs_of_counts(info, counts, plan.removed, **choice, drops=tuple(plan.drops))


def _static_merge_macs(info: HostInfo, plan: SlimPlan) -> int:
    """Static groups: a block whose removed patches merge into none has no product to pay for."""
    into = plan.into or []
    alive, drops = set(range(info.patches)), []
    for layer, kept in enumerate(plan.kept, start=1):
        if all(into[patch] < 0 for patch in alive - set(kept)):
            drops.append(layer)
        alive = set(kept)
    return macs_of_counts(info, plan.counts, "merge", drops=tuple(drops))


def count_macs(model: nn.Module, plan: SlimPlan | None = None) -> int:
    """MACs per image of a host, of a host under a plan, of a slim model, or of one made in a peer's way."""
    known: int | None = getattr(model, "macs_per_image", None)
    if known is not None and plan is None:
        return known
    own: SlimPlan | None = getattr(model, "plan", None)
    if own is not None and plan is None:
        plan = own
    info: HostInfo = getattr(model, "host_info", None) or inspect(model)
    if plan is None:
        return host_macs(info)
    plan.check_fits(info)
    return plan_macs(info, plan)
