"""Pruning one block of a network, without tuning: the paper's figures of redundancy by depth and of scores.

"We prune a single layer" can be read in two ways, and both are measured. `skip`, Eq. 2 with one mask that is not all
ones: a pruned patch is not computed in this block, comes out of it as it went in, and the next blocks compute it again.
`drop`, what happens to a patch in a slimmed network: it leaves, and no later block sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.paper.figures.work import Work
from benchmarks.rows import Row
from patchslim.evidence.features import Features
from patchslim.evidence.network import Network, Partial
from patchslim.evidence.scores import score_block
from patchslim.evidence.taylor import GateDerivatives, Removal
from patchslim.hosts import Host, HostInfo
from patchslim.macs import host_macs, steps_macs
from patchslim.plan import static_steps
from patchslim.search.greedy import PROBES
from patchslim.steps.keep import Keep
from patchslim.steps.slice import Slice

READINGS = ("skip", "drop")
FROM_IMAGES = ("impact", "taylor", "attention")
SCORES = (*FROM_IMAGES, "random", "radial", "spread")


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
        return steps_macs(info, static_steps(info, counts, "slice")) / whole
    saved = Keep().macs(info, layer, info.patches) - Slice(n=count).macs(info, layer, info.patches)
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


def measure_blocks(work: Work, figure: str, layers: Sequence[int], cuts: Sequence[Cut]) -> None:
    """A row for every cut of every layer, on disk layer by layer. What lacks weights or images has its MACs alone."""
    info = work.host.info
    work.keep([work.host_row(figure)])
    for layer in layers:
        left = [cut for cut in cuts if not work.done(_row(work, figure, layer, cut))]
        known = [cut for cut in left if work.scored and (work.images is not None or cut.score not in FROM_IMAGES)]
        orders = {}
        for key in dict.fromkeys((cut.score, cut.seed) for cut in known):
            counts = [kept_of(info, cut.rate) for cut in known if (cut.score, cut.seed) == key]
            features = work.features if key[0] in FROM_IMAGES else None
            orders[key] = order_of(work.host, features, layer, key[0], counts, key[1])
        right = dict(zip(known, hits_of(work, layer, known, orders), strict=True)) if known else {}
        if left:
            work.keep([_row(work, figure, layer, cut, right.get(cut)) for cut in left])


def _row(work: Work, figure: str, layer: int, cut: Cut, right: Tensor | None = None) -> Row:
    point = {"block": layer, "score": cut.score, "removed": cut.removed, "rate": cut.rate}
    ratio = macs_ratio(work.host.info, layer, cut)
    return work.row(figure, right, method="one block", seed=cut.seed, point=point, macs_ratio=ratio)


def order_of(
    host: Host, features: Features | None, layer: int, score: Any, counts: Sequence[int], seed: int = 0
) -> list[int]:
    """All patches, those that stay longest in block `layer` (from 1) first; `counts` of them will be kept."""
    if score == "taylor":
        assert features is not None
        return taylor_order(host, features, layer, counts, seed)
    order: list[int] = lone_scores(host, features, layer, score, seed).argsort(descending=True, stable=True).tolist()
    return order


def lone_scores(host: Host, features: Features | None, layer: int, score: Any, seed: int = 0) -> Tensor:
    """The score of Algorithm 1 for block `layer` when all blocks above it keep everything: (N,)."""
    info = host.info
    above = dict.fromkeys(range(layer + 1, info.depth + 1), info.patches)
    if not info.reads_patches and layer < info.depth:
        above[info.depth] = 0  # nobody reads its patches
    if features is not None:
        features.focus((layer - 1, layer))
    everything: Any = Partial(list(range(info.patches)), above)
    unread: Any = features  # by scores that know nothing of images
    return score_block(Network(host), unread, everything, layer, score, seed)


def taylor_order(host: Host, features: Features, layer: int, counts: Sequence[int], seed: int = 0) -> list[int]:
    """By greedy reconstruction, as `drop` does it over all blocks: patch after patch leaves this one, and the
    derivatives are taken anew at every count."""
    derivatives, gone, patches = GateDerivatives(host, features, seed), list[int](), host.info.patches
    if layer > derivatives.blocks:  # nobody reads its patches
        return list(range(patches))
    for stage, count in enumerate(sorted(counts, reverse=True)):
        exits = torch.full((patches,), derivatives.blocks)
        exits[gone] = layer - 1
        parts = list(derivatives.batches(exits, PROBES, stage))
        # Leaving block l closes a patch's gates in all blocks from l on.
        jacobian = torch.cat([own[:, layer - 1 :].sum(dim=1).transpose(0, 1).flatten(1) for own, _ in parts], dim=1)
        removal = Removal(jacobian[None], torch.cat([residual.flatten() for _, residual in parts]))
        alive = torch.ones(patches, dtype=torch.long, device=jacobian.device)
        alive[gone] = 0
        gain = torch.tensor([0.0, 1.0], device=jacobian.device)
        while patches - len(gone) > count:
            patch = removal.best(alive, gain)
            removal.remove(patch, 1)
            alive[patch] = 0
            gone.append(patch)
    stay = sorted(set(range(patches)) - set(gone))
    return [*stay, *reversed(gone)]
