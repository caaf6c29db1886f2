"""ToMe (Bolya et al., Token Merging: Your ViT But Faster, ICLR 2023): r tokens per block merge, by bipartite soft
matching on keys; attention is proportional to the tokens' sizes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.hosts import HostInfo
from patchslim.hosts.attention import Mix
from patchslim.peers.blocks import HalfwayBlock, Halving, attention_of, made_from, read_in
from patchslim.peers.counting import halfway_macs
from patchslim.peers.fit import first_fitting, too_low
from patchslim.peers.method import Cell, Job, Unreachable
from patchslim.slim.tokens import Tokens, take


class Pairs(NamedTuple):
    """Even tokens that go, the odd ones they join, and the even ones that stay; numbers within their halves."""

    gone: Tensor  # (B, r)
    into: Tensor  # (B, r)
    stay: Tensor  # (B, ⌈t/2⌉ - r)


def most_pairs(tokens: int, prefix: int) -> int:
    """How many of some tokens can merge in one block: half of those that are no prefix."""
    return (tokens - prefix) // 2


def match(metric: Tensor, r: int, prefix: int) -> Pairs:
    """Bipartite soft matching: every even token looks for the odd one most like it; the r best pairs merge.

    metric (B, p + t, c). Prefix tokens neither go nor take any in. Where there are some, those that stay keep their
    order, so that the prefix stays in front.
    """
    unit = F.normalize(metric, dim=-1)
    scores = unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)
    scores[:, : (prefix + 1) // 2] = -math.inf
    scores[:, :, : prefix // 2] = -math.inf
    alike, nearest = scores.max(dim=2)
    rank = alike.argsort(dim=1, descending=True)
    stay = rank[:, r:].sort(dim=1).values if prefix else rank[:, r:]
    return Pairs(rank[:, :r], nearest.gather(1, rank[:, :r]), stay)


def joined(rows: Tensor, pairs: Pairs, prefix: int) -> Tensor:
    """Rows that merge, added up: (B, p + t, c) → (B, p + t - r, c); even ones that stay, then the odd ones, and the
    prefix in front of all."""
    even, odd = rows[:, ::2], rows[:, 1::2]
    into = pairs.into[..., None].expand(-1, -1, rows.shape[2])
    stay, odd = take(even, pairs.stay), odd.scatter_add(1, into, take(even, pairs.gone))
    if prefix < 2:
        return torch.cat([stay, odd], dim=1)
    half, rest = (prefix + 1) // 2, prefix // 2
    front = rows[:, :prefix]
    return torch.cat([front, stay[:, half:], odd[:, rest:]], dim=1)


class Merge(Halving):
    """r tokens go, each into another one; the mean is weighted by size."""

    def __init__(self, r: int, prefix: int) -> None:
        super().__init__()
        self.r, self.prefix = r, prefix

    def mix(self, size: Tensor | None, seen: list[Tensor]) -> Mix:
        """Proportional attention; the keys, averaged over heads, are what tokens are compared by: (B, p + t, d_h)."""
        attention = attention_of(size)

        def look(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
            seen.append(k.mean(dim=1))
            return attention(q, k, v, scale=scale, dropout=dropout, fused=fused)

        return look

    def forward(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """(B, p + t, d) → (B, p + t - r, d)."""
        x = tokens.x
        size = torch.ones_like(x[..., 0]) if tokens.size is None else tokens.size
        with torch.no_grad():  # which tokens merge is a choice, and has no derivative
            pairs = match(seen.detach(), self.r, self.prefix)
        total = joined(size[..., None], pairs, self.prefix)
        return Tokens(joined(x * size[..., None], pairs, self.prefix) / total, total[..., 0])

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"r={self.r}"


def counts_of(info: HostInfo, removals: list[int]) -> list[int]:
    """Patches after every block."""
    left, counts = info.patches, []
    for r in removals:
        left -= min(r, most_pairs(info.prefix_tokens + left, info.prefix_tokens))
        counts.append(left)
    return counts


def tome_macs(info: HostInfo, removals: list[int], readout_only: bool = False) -> int:
    """Queries of all tokens, the MLP of those left, and the similarity of even to odd tokens over one head's width."""

    def matching(layer: int, n_in: int, n: int) -> int:
        pairs = (n_in + 1) // 2 * (n_in // 2) if n < n_in else 0
        return pairs * (info.blocks[layer - 1].attention_width // info.heads)

    return halfway_macs(info, counts_of(info, removals), matching, readout_only)


class ToMe:
    """r tokens per block. The budget is met with r in the first blocks and r - 1 in the others."""

    name = "tome"

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """The fewest merges that fit."""
        info = job.host.info
        schedules = [
            [r] * blocks + [r - 1] * (info.depth - blocks)
            for r in range(1, info.patches // 2 + 1)
            for blocks in range(1, info.depth + 1)
        ]

        def macs(removals: list[int]) -> int:
            return tome_macs(info, removals, job.config.readout_only)

        found = first_fitting(schedules, macs, job.budget(ratio))
        return too_low(job, "ToMe", ratio, macs(schedules[-1])) if found is None else self.with_schedule(job, found)

    def with_schedule(self, job: Job, removals: list[int]) -> Cell:
        """ToMe with r given for every block."""
        host, info = job.fresh_host(), job.host.info
        counts = counts_of(info, removals)
        above, blocks = [info.patches, *counts], []
        for layer, block in enumerate(host.blocks, start=1):
            r = above[layer - 1] - above[layer]
            reduce = Merge(r, info.prefix_tokens) if r else None
            blocks.append(HalfwayBlock(block, host.math, reduce, read=read_in(job, layer), last=layer == info.depth))
        macs = tome_macs(info, removals, job.config.readout_only)
        return Cell(made_from(host, blocks, macs), macs, {"r": removals, "patches_per_block": counts})
