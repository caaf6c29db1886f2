"""Closed-form MACs of peers, one multiply-add counted once; equal to torch's flop counter with fused attention off."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from patchslim.hosts import HostInfo
from patchslim.macs import block_macs, head_macs

Extra = Callable[[int, int, int], int]  # block (from 1), tokens that enter, tokens that leave → MACs of the choice


def halfway_macs(info: HostInfo, patches: Sequence[int], extra: Extra, readout_only: bool = False) -> int:
    """Tokens go between attention and MLP: all that enter block l take queries, `patches[l - 1]` patches see its MLP.

    `readout_only`: the last block computes prefix tokens alone, and chooses nothing.
    """
    total, n_in = info.embed_macs, info.tokens
    for layer, (shape, count) in enumerate(zip(info.blocks, patches, strict=True), start=1):
        n = info.prefix_tokens + count
        if layer == info.depth and readout_only and not info.reads_patches:
            total += block_macs(shape, n_in, info.prefix_tokens)
            n = info.prefix_tokens
        else:
            total += block_macs(shape, n_in, n_in) - (n_in - n) * shape.mlp_macs
            total += extra(layer, n_in, n)
        n_in = n
    return total + head_macs(info, n_in)


def whole_macs(info: HostInfo, patches: Sequence[int], readout_only: bool = False) -> int:
    """Tokens go between blocks: `patches[l - 1]` patches enter block l and leave it."""
    total, n = info.embed_macs, info.tokens
    for layer, (shape, count) in enumerate(zip(info.blocks, patches, strict=True), start=1):
        n_in = n = info.prefix_tokens + count
        if layer == info.depth and readout_only and not info.reads_patches:
            n = info.prefix_tokens
        total += block_macs(shape, n_in, n)
    return total + head_macs(info, n)
