"""Static patches for the others to join: nested sets of any size, block after block from the first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from patchslim.evidence.coverage import coverage_order
from patchslim.evidence.derivatives import read_blocks
from patchslim.evidence.features import Features
from patchslim.hosts import Host
from patchslim.kernels.match import unit_keys
from patchslim.steps.selector import as_fp32

MOST_IMAGES = 128  # more say the same
KEY_BYTES, PAIR_BYTES = 2**30, 2**28  # for keys of all blocks, and for the distances in one
SPARE = 10  # a search soon asks for a few more to go: this part of all patches is put in order at once
FLOOR = 1.0  # what a patch weighs that the class token does not attend to; the average one weighs 1 (docs/notebook)


class CoverageSets:
    """Which patches stay in each block, whatever the counts: those that cover the others best in the host's keys."""

    def __init__(self, host: Host, features: Features) -> None:
        self.info, self.known = host.info, dict[tuple[int, tuple[int, ...]], list[int]]()
        self.keys, self.weights = _look(host, features)

    def kept(self, counts: Sequence[int]) -> list[list[int]]:
        """The patches of every block, (counts[l - 1] of them), in ascending order."""
        alive, blocks = list(range(self.info.patches)), []
        for layer, count in enumerate(counts, start=1):
            if 0 < count < len(alive):
                alive = sorted(set(alive) - set(self._gone(layer, tuple(alive), len(alive) - count)))
            blocks.append(alive if count else [])
        return blocks

    def _gone(self, layer: int, alive: tuple[int, ...], count: int) -> list[int]:
        """So many of the patches that come into a block, those that go first."""
        if len(self.known.get((layer, alive), [])) < count:
            keys, weight = self.keys[layer - 1][:, list(alive)], self.weights[layer - 1][:, list(alive)]
            spare = self.info.patches // SPARE
            order = coverage_order((1 - keys @ keys.transpose(1, 2)).square(), weight, count + spare)
            self.known[layer, alive] = [alive[place] for place in order]
        return self.known[layer, alive][:count]


@torch.no_grad()
def _look(host: Host, features: Features) -> tuple[list[Tensor], list[Tensor]]:
    """Keys of the host's patches at unit length (images, N, c), and what they weigh (images, N), by block."""
    info = host.info
    blocks = range(1, read_blocks(info) + 1)
    channels = sum(info.blocks[layer - 1].attention_width for layer in blocks)
    room = min(KEY_BYTES // (4 * info.patches * max(1, channels)), PAIR_BYTES // (4 * info.patches**2))
    limit = max(1, min(MOST_IMAGES, room))
    keys, weights = [], []
    for layer in blocks:
        block = host.blocks[layer - 1]
        features.focus((layer - 1,))
        own, attended, seen = [], [], 0
        for (x,) in features.batches(layer - 1):
            incoming = host.math.read(block, x[: limit - seen])
            own.append(unit_keys(as_fp32(incoming.k), info.prefix_tokens))
            weight = torch.full(own[-1].shape[:2], 1 + FLOOR, device=x.device)
            if info.reads_class:
                attention = host.math.class_attention(block, incoming, None)[:, info.prefix_tokens :]
                weight = as_fp32(attention) * info.patches + FLOOR
            attended.append(weight)
            seen += len(own[-1])
            if seen == limit:
                break
        keys.append(torch.cat(own))
        weights.append(torch.cat(attended))
    return keys, weights
