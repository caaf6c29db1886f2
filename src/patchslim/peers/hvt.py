"""HVT (Pan et al., Scalable Vision Transformers with Hierarchical Pooling, ICCV 2021): tokens are max-pooled between
stages, and a position embedding is added to what is left."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.hosts import HostInfo
from patchslim.macs import block_macs, head_macs
from patchslim.peers.blocks import WholeBlock, made_from, read_in
from patchslim.peers.method import Cell, Job, Unreachable

KERNEL, STRIDE = 3, 2  # the paper's, along the sequence of patches
MOST_POOLS = 4  # the paper's HVT-S-4


def pooled(patches: int) -> int:
    """Patches that a pooling leaves."""
    return (patches - KERNEL) // STRIDE + 1


class Pool(nn.Module):
    """Max pooling of the patches; prefix tokens pass. The position embedding begins at zero and learns in recovery."""

    def __init__(self, patches: int, width: int, prefix: int) -> None:
        """patches: those that come in."""
        super().__init__()
        self.prefix = prefix
        self.position = nn.Parameter(torch.zeros(1, pooled(patches), width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, p + t, d) → (B, p + ⌊(t - 3) / 2⌋ + 1, d)."""
        patches = x[:, self.prefix :].transpose(1, 2)
        patches = F.max_pool1d(patches, KERNEL, STRIDE).transpose(1, 2) + self.position
        return torch.cat([x[:, : self.prefix], patches], dim=1)


def placements(info: HostInfo) -> list[list[int]]:
    """Blocks (from 1) after which patches are pooled: 1 to 4 stages of equal depth, from any block on."""
    found = []
    for pools in range(1, MOST_POOLS + 1):
        for first in range(1, info.depth):
            after = [first + (info.depth - first) * stage // pools for stage in range(pools)]
            distinct = sorted(set(after))
            if len(distinct) == pools and _fits(info, pools):
                found.append(distinct)
    return found


def _fits(info: HostInfo, pools: int) -> bool:
    left = info.patches
    for _ in range(pools):
        if left < KERNEL:
            return False
        left = pooled(left)
    return True


def counts_of(info: HostInfo, after: list[int]) -> list[int]:
    """Patches that leave every block, pooled where it pools."""
    left, counts = info.patches, []
    for layer in range(1, info.depth + 1):
        left = pooled(left) if layer in after else left
        counts.append(left)
    return counts


def hvt_macs(info: HostInfo, after: list[int], readout_only: bool = False) -> int:
    """Every block computes what the pooling before it left."""
    total, entering = info.embed_macs, [info.patches, *counts_of(info, after)]
    only = readout_only and not info.reads_patches
    for layer, shape in enumerate(info.blocks, start=1):
        n_in = info.prefix_tokens + entering[layer - 1]
        total += block_macs(shape, n_in, info.prefix_tokens if only and layer == info.depth else n_in)
    leaving = info.prefix_tokens + (0 if only else entering[-1])
    return total + head_macs(info, leaving)


class Hvt:
    """The places of the poolings are the knob, so MACs come in steps."""

    name = "hvt"

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """The placement with the most MACs that fits; of equal ones the fewest poolings."""
        info = job.host.info
        known = {tuple(after): hvt_macs(info, after, job.config.readout_only) for after in placements(info)}
        fitting = {after: macs for after, macs in known.items() if macs <= job.budget(ratio)}
        if not fitting:
            least = min(known.values(), default=job.budget(1.0)) / job.budget(1.0)
            return Unreachable(f"HVT with up to {MOST_POOLS} poolings takes at least {least:.3f} of the MACs")
        after = max(fitting, key=lambda places: (fitting[places], -len(places)))
        return self.with_pools(job, list(after))

    def with_pools(self, job: Job, after: list[int]) -> Cell:
        """HVT with poolings after some blocks (from 1)."""
        host, info = job.fresh_host(), job.host.info
        entering, blocks = [info.patches, *counts_of(info, after)], []
        for layer, block in enumerate(host.blocks, start=1):
            pool = Pool(entering[layer - 1], info.width, info.prefix_tokens) if layer in after else None
            blocks.append(WholeBlock(block, host.math, after=pool, read=read_in(job, layer)))
        macs = hvt_macs(info, after, job.config.readout_only)
        return Cell(made_from(host, blocks, macs), macs, {"pools_after": after, "patches_per_block": entering[:-1]})
