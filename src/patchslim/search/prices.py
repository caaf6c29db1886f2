"""A block's time as a sum of what it does, each part at a price of its own, and a plan's as the sum of its blocks.

Prices are fitted to blocks that were timed. They are never negative, so that a token more is never a gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from patchslim.hosts import HostInfo
from patchslim.macs import choice_macs, host_macs
from patchslim.search.cost import MacCost

Block = tuple[int, int, int]  # number from 1, tokens that come in, tokens computed; prefix included
PARTS = 7  # of a block's work, see `parts_of`
MACS = (1, 2, 3)  # those that every block has and that are counted in MACs
EXTRAS, EXTRA = (0, 5), 0.1  # those that are there or not, and what they may cost: of a whole block


def blocks_of(kind: MacCost, counts: Sequence[int]) -> Iterator[Block]:
    """The blocks of a network that keeps so many patches."""
    info, n_in = kind.info, kind.info.tokens
    for layer, count in enumerate(counts, start=1):
        yield layer, n_in, info.prefix_tokens + count
        n_in = info.tokens if kind.removed == "carry" else info.prefix_tokens + count


def parts_of(kind: MacCost, block: Block) -> list[float]:
    """What a block does that takes time: (PARTS,), MACs where there are any to count.

    Being called; keys and values of what comes in; queries, projection and MLP of what is computed; attention; the
    same once more where keys have sizes; choosing patches at all; the MACs of choosing and merging.
    """
    layer, n_in, n = block
    info, shape = kind.info, kind.info.blocks[layer - 1]
    patches, kept = n_in - info.prefix_tokens, n - info.prefix_tokens
    projection, attention = 2 * shape.width * shape.attention_width, float(2 * n * n_in * shape.attention_width)
    merges = kind.removed == "merge"
    chooses = 0 < kept < patches and (merges or kind.select != "static")
    choice = choice_macs(info, layer, patches, kept, select=kind.select, merges=merges, **kind.chooser)
    return [
        1.0,
        float(n_in * projection),
        float(n * (projection + shape.mlp_macs)),
        attention,
        attention if merges and n_in < info.tokens else 0.0,
        1.0 if chooses else 0.0,
        float(choice) if chooses else 0.0,
    ]


def fit_prices(parts: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """Prices p ≥ 0 that make Σ_k p_k parts[i][k] about times[i], by relative least squares: (rows, PARTS), (rows,).

    Times are counted in whole blocks. The more they scatter, the nearer prices stay to what is expected of them: all
    MACs cost the same, and nothing else anything.
    """
    wanted = torch.tensor(times, dtype=torch.float64)
    rows = torch.tensor(parts, dtype=torch.float64) / wanted[:, None]
    macs = rows[:, list(MACS)].sum(dim=1)
    per_mac = float(macs.sum() / macs.square().sum())
    scale = torch.tensor([EXTRA if part in EXTRAS else per_mac for part in range(PARTS)], dtype=torch.float64)
    expected = torch.tensor([1.0 if part in (*MACS, PARTS - 1) else 0.0 for part in range(PARTS)], dtype=torch.float64)
    ones = torch.ones(len(rows), dtype=torch.float64)
    free = _non_negative(rows * scale, ones)
    scatter = float((rows * scale @ free - 1).square().mean().sqrt())
    held = torch.cat([rows * scale, scatter * torch.eye(PARTS, dtype=torch.float64)])
    return (_non_negative(held, torch.cat([ones, scatter * expected])) * scale).tolist()


def _non_negative(rows: Tensor, wanted: Tensor) -> Tensor:
    """x ≥ 0 of about least |rows x − wanted|: what would have to be negative is left out, worst first."""
    used = [column for column in range(rows.shape[1]) if rows[:, column].any()]
    found = rows.new_zeros(rows.shape[1])
    while used:
        # The shortest solution where there are several: parts may go hand in hand.
        solution = torch.linalg.lstsq(rows[:, used], wanted[:, None], driver="gelsd").solution[:, 0]
        if (solution >= 0).all():
            found[used] = solution
            break
        used.pop(int(solution.argmin()))
    return found


@dataclass(frozen=True)
class LatencyCost:
    """The time that plans of one kind take on a device, in as many MACs as the host takes that time for."""

    kind: MacCost
    prices: tuple[float, ...]  # of each part, in shares of the host's time (or in whole blocks, until it is made right)
    fixed: float = 0.0  # what is not in blocks: embedding, head
    grain: int = 1
    unit: ClassVar[str] = "time"

    @property
    def info(self) -> HostInfo:
        """The host."""
        return self.kind.info

    def share(self, counts: Sequence[int]) -> float:
        """The time over the host's."""
        return self.fixed + sum(self._block(block) for block in blocks_of(self.kind, counts))

    def of(self, counts: Sequence[int]) -> float:
        """The time in the host's MACs."""
        return self.share(counts) * host_macs(self.info)

    def right_for(self, counts: Sequence[int], share: float) -> LatencyCost:
        """The same in proportion, right for a network that was timed as a whole."""
        factor = share / self.share(counts)
        return replace(self, prices=tuple(factor * price for price in self.prices), fixed=factor * self.fixed)

    def _block(self, block: Block) -> float:
        return sum(price * part for price, part in zip(self.prices, parts_of(self.kind, block), strict=True))
