"""A block's time as a sum of what it does, each part at a price of its own, and a plan's as the sum of its blocks.

Prices are fitted to blocks that were timed. They are never negative, so that a token more is never a gain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from patchslim.hosts import HostInfo
from patchslim.steps import Step

PARTS = 7  # of a block's work, see `parts_of`
MACS = (1, 2, 3)  # those that every block has and that are counted in MACs
EXTRAS, EXTRA = (0, 5), 0.1  # those that are there or not, and what they may cost: of a whole block


def parts_of(info: HostInfo, steps: Sequence[Step]) -> list[list[float]]:
    """What each block does that takes time: (depth, PARTS), MACs where there are any to count.

    Being called; keys and values; queries, projection and MLP; attention; the same once more where keys have sizes;
    choosing patches at all; the MACs of choosing and merging.
    """
    entering, sized, found = info.patches, False, []
    for layer, step in enumerate(steps, start=1):
        shape, work = info.blocks[layer - 1], step.work(info, layer, entering)
        projection = 2 * shape.width * shape.attention_width
        attention = float(2 * work.queries * work.keys * shape.attention_width)
        found.append(
            [
                1.0,
                float(work.keys * projection),
                float(work.queries * projection + work.fed * shape.mlp_macs),
                attention,
                attention if sized else 0.0,
                1.0 if work.choice else 0.0,
                float(work.choice),
            ]
        )
        sized = sized or step.sizes
        entering = step.leaving(entering)
    return found


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
