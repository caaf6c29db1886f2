"""EViT (Liang et al., Not All Patches Are What You Need: Expediting Vision Transformers via Token Reorganizations,
ICLR 2022): in three blocks the patches that the class token attends to most stay, the others fuse into one token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from patchslim.hosts import HostInfo
from patchslim.hosts.attention import Mix
from patchslim.peers.blocks import HalfwayBlock, Halving, attention_of, made_from, read_in
from patchslim.peers.counting import halfway_macs
from patchslim.peers.fit import first_fitting, rates, stages, too_low
from patchslim.peers.method import Cell, Job, Unreachable
from patchslim.slim.tokens import Tokens, take


def choose(attention: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n most attended patches, most attended first, and the others: (B, t) → (B, n), (B, t - n)."""
    rank = attention.argsort(dim=1, descending=True)
    return rank[:, :n], rank[:, n:]


def fuse(patches: Tensor, attention: Tensor, others: Tensor) -> Tensor:
    """One token out of those that go, weighted by attention (a sum, as the paper has it): (B, t, d) → (B, 1, d)."""
    return take(attention, others)[:, None].to(patches.dtype) @ take(patches, others)


class Attentive(Halving):
    """The attentive patches and one fused token."""

    def __init__(self, n: int, prefix: int) -> None:
        """n: patches kept, the fused one not counted."""
        super().__init__()
        self.n, self.prefix = n, prefix

    def mix(self, size: Tensor | None, seen: list[Tensor]) -> Mix:
        """Fused attention for all, and the class token's own row, averaged over heads: (B, p + t)."""
        attention = attention_of(size)

        def look(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
            row = q[:, :, :1] * scale @ k.transpose(-2, -1)
            row = row.to(torch.promote_types(row.dtype, torch.float32)).softmax(dim=-1)
            seen.append(row[:, :, 0].mean(dim=1))
            return attention(q, k, v, scale=scale, dropout=dropout, fused=fused)

        return look

    def forward(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """(B, p + t, d) → (B, p + n + 1, d), the fused token last."""
        patches, attention = tokens.x[:, self.prefix :], seen[:, self.prefix :]
        kept, others = choose(attention, self.n)
        parts = [tokens.x[:, : self.prefix], take(patches, kept), fuse(patches, attention, others)]
        return Tokens(torch.cat(parts, dim=1))

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"n={self.n}"


def kept_by(info: HostInfo, rate: float) -> dict[int, int]:
    """Patches that stay in each block that reorganises (from 1): ⌈rate · incoming⌉, a fused token counted as one."""
    left, kept = info.patches, {}
    for layer in stages(info):
        n = math.ceil(rate * left)
        if n < left:
            kept[layer] = n
            left = n + 1
    return kept


def counts_of(info: HostInfo, kept: dict[int, int]) -> list[int]:
    """Patches after every block, fused tokens among them."""
    left, counts = info.patches, []
    for layer in range(1, info.depth + 1):
        left = kept[layer] + 1 if layer in kept else left
        counts.append(left)
    return counts


def evit_macs(info: HostInfo, kept: dict[int, int], readout_only: bool = False) -> int:
    """Queries of all tokens, the MLP of those left; the class token's row once more, and the fused token."""

    def choice(layer: int, n_in: int, n: int) -> int:
        shape = info.blocks[layer - 1]
        if layer not in kept:
            return 0
        return n_in * shape.attention_width + (n_in - n + 1) * shape.width

    return halfway_macs(info, counts_of(info, kept), choice, readout_only)


class EViT:
    """One keep rate in the blocks that begin the later quarters of the network."""

    name = "evit"

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """The largest keep rate that fits."""
        info = job.host.info
        if not info.reads_class:
            return Unreachable(f"EViT goes by the class token's attention, and {info.name} reads no class token")

        def macs(rate: float) -> int:
            return evit_macs(info, kept_by(info, rate), job.config.readout_only)

        rate = first_fitting(rates(), macs, job.budget(ratio))
        return too_low(job, "EViT", ratio, macs(rates()[-1])) if rate is None else self.with_rate(job, rate)

    def with_rate(self, job: Job, rate: float) -> Cell:
        """EViT at a keep rate."""
        host, info = job.fresh_host(), job.host.info
        kept, prefix = kept_by(info, rate), info.prefix_tokens
        blocks = [
            HalfwayBlock(
                block,
                host.math,
                Attentive(kept[layer], prefix) if layer in kept and not read_in(job, layer) else None,
                read=read_in(job, layer),
                last=layer == info.depth,
            )
            for layer, block in enumerate(host.blocks, start=1)
        ]
        macs = evit_macs(info, kept, job.config.readout_only)
        detail = {"keep_rate": rate, "patches_per_block": counts_of(info, kept)}
        return Cell(made_from(host, blocks, macs), macs, detail)
