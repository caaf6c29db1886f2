"""Multiply-accumulates of a block's parts. One multiply-add counts as one; only matrix products count."""

from __future__ import annotations

from typing import NamedTuple

from patchslim.hosts import BlockShape, HostInfo


class Work(NamedTuple):
    """What one block computes: numbers of tokens, prefix included, and the MACs of choosing and merging."""

    keys: int  # tokens that give keys and values
    queries: int  # tokens that attend
    fed: int  # tokens that pass the MLP
    choice: int = 0  # MACs of choosing patches and of merging them

    def macs(self, shape: BlockShape) -> int:
        """MACs of the block (paper, "Computation Efficiency"): projections, two products of attention, the MLP."""
        projection = shape.width * shape.attention_width
        attention = 2 * self.queries * self.keys * shape.attention_width
        return 2 * (self.keys + self.queries) * projection + attention + self.fed * shape.mlp_macs + self.choice


def averaging_macs(shape: BlockShape, kept: int, gone: int) -> int:
    """Averaging `gone` patches into some of `kept`: a 0/1 matrix times tokens, their weight, size and length."""
    return kept * gone * (shape.width + 3)


def class_attention_macs(info: HostInfo, shape: BlockShape, patches: int) -> int:
    """The class token's own row of attention, where the head reads a class token."""
    return (shape.width + info.prefix_tokens + patches) * shape.attention_width if info.reads_class else 0


def pairing_macs(info: HostInfo, shape: BlockShape, patches: int) -> int:
    """Similarity of every second patch to the others by keys, and the class token's attention."""
    pairs = (patches + 1) // 2 * (patches // 2)
    return pairs * shape.attention_width + class_attention_macs(info, shape, patches)
