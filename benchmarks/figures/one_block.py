"""Pruning one block of a network, without tuning: the paper's figures of redundancy by depth and of scores.

"We prune a single layer" can be read in two ways, and both are measured. `skip`, Eq. 2 with one mask that is not all
ones: a pruned patch is not computed in this block, comes out of it as it went in, and the next blocks compute it again.
`drop`, what happens to a patch in a slimmed network: it leaves, and no later block sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from figures.orders import FROM_IMAGES, order_of
from figures.rows import Row, Rows
from figures.work import Work
from patchslim.hosts import Host, HostInfo
from patchslim.macs import block_macs, host_macs, macs_of_counts
from patchslim.peers.hits import to_hex
from patchslim.search import SearchConfig
from patchslim.search.features import Features

KEY = ("layer", "score", "seed", "removed", "rate")
READINGS = ("skip", "drop")


class Cut(NamedTuple):
    """One block with fewer patches."""

    score: str
    seed: int
    removed: str  # skip or drop
    rate: float  # of the patches that go


def kept_of(info: HostInfo, rate: float) -> int:
    """Patches that stay; at least one, for heads that read patches."""
    return max(1, round(info.patches * (1 - rate)))


def macs_ratio(info: HostInfo, layer: int, cut: Cut) -> float:
    """MACs over the host's when block `layer` alone is pruned."""
    count, whole = kept_of(info, cut.rate), host_macs(info)
    if cut.removed == "drop":
        counts = [info.patches if block < layer else count for block in range(1, info.depth + 1)]
        return macs_of_counts(info, counts) / whole
    shape, tokens = info.blocks[layer - 1], info.tokens
    saved = block_macs(shape, tokens, tokens) - block_macs(shape, tokens, info.prefix_tokens + count)
    return (whole - saved) / whole


def pruned_block(host: Host, layer: int, x: Tensor, order: Tensor, count: int, removed: str) -> Tensor:
    """Block `layer` (from 1) computes the first `count` patches of `order` (N,) and no others.

    x = Z_{l-1} (B, p + N, d) → (B, p + N, d) in the host's order with `skip`, (B, p + count, d) with `drop`.
    """
    prefix = host.info.prefix_tokens
    place = torch.cat([torch.arange(prefix, device=order.device), order + prefix])
    block, skip = host.blocks[layer - 1], removed == "skip"
    out = host.math.run(block, x.index_select(1, place), prefix + count, skip)
    return out.index_select(1, place.argsort()) if skip else out


def logits_after(host: Host, layer: int, x: Tensor) -> Tensor:
    """The host's output from what leaves block `layer`: (B, n, d) → (B, classes)."""
    for block in host.blocks[layer:]:
        x = block(x, None)
    return host.logits(x)


@torch.inference_mode()
def hits_of(work: Work, layer: int, cuts: Sequence[Cut], orders: dict[tuple[str, int], list[int]]) -> list[Tensor]:
    """Which labelled images are right under each cut. The blocks before `layer` run once for all of them."""
    host, found = work.host, [list[Tensor]() for _ in cuts]
    places = {key: torch.tensor(order, device=work.device) for key, order in orders.items()}
    for pixels, labels in work.labelled():
        x, right = host.embed(pixels), labels.to(pixels.device)
        for block in host.blocks[: layer - 1]:
            x = block(x, None)
        for own, cut in zip(found, cuts, strict=True):
            order, count = places[cut.score, cut.seed], kept_of(host.info, cut.rate)
            logits = logits_after(host, layer, pruned_block(host, layer, x, order, count, cut.removed))
            own.append((logits.argmax(dim=1) == right) & ~logits.isnan().any(dim=1))
    return [torch.cat(own).cpu() for own in found]


def measure_blocks(work: Work, rows: Rows, layers: Sequence[int], cuts: Sequence[Cut]) -> None:
    """A row for every cut of every layer, on disk layer by layer. What lacks weights or images has its MACs alone."""
    features = _features(work)
    for layer in layers:
        left = [cut for cut in cuts if not rows.done({"layer": layer} | cut._asdict())]
        known = [cut for cut in left if work.scored and (features is not None or cut.score not in FROM_IMAGES)]
        orders = dict(_orders(work, features, layer, known))
        right = dict(zip(known, hits_of(work, layer, known, orders), strict=True)) if known else {}
        if left:
            rows.add(*(_row(work, layer, cut, right.get(cut)) for cut in left))
            print(f"block {layer}: {len(left)} rows", flush=True)


def _features(work: Work) -> Features | None:
    settings = SearchConfig()
    if work.images is None:
        return None
    return Features(work.host, work.images, settings.batch_size, settings.cache_gib * 2**30)


def _orders(work: Work, features: Features | None, layer: int, cuts: Sequence[Cut]) -> Iterator[Any]:
    """((score, seed), order) of all that some cuts ask for."""
    for score, seed in dict.fromkeys((cut.score, cut.seed) for cut in cuts):
        rates = {cut.rate for cut in cuts if (cut.score, cut.seed) == (score, seed)}
        counts = [kept_of(work.host.info, rate) for rate in rates]
        yield (score, seed), order_of(work.host, features, layer, score, counts, seed)


def _row(work: Work, layer: int, cut: Cut, right: Tensor | None) -> Row:
    info = work.host.info
    row: Row = {"layer": layer} | cut._asdict() | {"patches": kept_of(info, cut.rate)}
    row |= {"macs_ratio": macs_ratio(info, layer, cut), "top1": None}
    return row if right is None else row | {"top1": float(right.double().mean() * 100), "right": to_hex(right)}
