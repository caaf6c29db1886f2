"""Candidates of a search often agree in their first blocks; what leaves those is kept, within a bound, and not computed
again. Where images choose or group for themselves, what leaves a block depends on the counts up to it and on no other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from patchslim.plan import SlimPlan
from patchslim.slim import SlimBlock
from patchslim.steps import Tokens

Block = Callable[[Any], Any]  # what enters → what leaves
Prefix = tuple[Any, ...]  # the steps so far, and the patches that static ones keep


class PrefixMemory:
    """The tokens that leave a block, of every batch, under the last prefixes that were run."""

    def __init__(self, limit_bytes: float) -> None:
        self.limit_bytes, self.used = limit_bytes, 0
        self.states: OrderedDict[Prefix, list[Any]] = OrderedDict()

    def run(self, plan: SlimPlan, blocks: Sequence[Block], start: Callable[[], list[Any]]) -> list[Any]:
        """What leaves the last block, of every batch; `start` gives what enters the first."""
        depth = len(blocks)
        known = next((layer for layer in range(depth - 1, 0, -1) if _prefix(plan, layer) in self.states), 0)
        if known:
            self.states.move_to_end(_prefix(plan, known))
        states = self.states[_prefix(plan, known)] if known else start()
        for layer in range(known + 1, depth + 1):
            states = [blocks[layer - 1](state) for state in states]
            if layer < depth:
                self._keep(_prefix(plan, layer), states)
        return states

    def _keep(self, prefix: Prefix, states: list[Any]) -> None:
        """Remember, and forget what was not asked for the longest when there is no room."""
        self.states[prefix] = states
        self.used += _bytes(states)
        while self.used > self.limit_bytes and self.states:
            _, oldest = self.states.popitem(last=False)
            self.used -= _bytes(oldest)


def sorting_blocks(plan: SlimPlan, blocks: Sequence[SlimBlock]) -> list[Block]:
    """A static plan's blocks that each put the patches first that stay, and leave them in the host's order.

    A slim model sorts once, by how long patches stay. But then what leaves a block is in an order, and is rounded in
    ways, that later counts decide.
    """
    assert blocks[0].entrance is not None
    blocks[0].entrance.order = None
    alive, found = list(range(plan.host.patches)), list[Block]()
    for block, kept in zip(blocks, plan.kept, strict=True):
        stay = set(kept)
        places = sorted(range(len(alive)), key=lambda place: alive[place] not in stay)  # stable
        found.append(_after_sorting(block, places, plan.host.prefix_tokens))
        alive = kept
    return found


def _after_sorting(block: Block, places: list[int], prefix: int) -> Block:
    if places == sorted(places):
        return block
    every = torch.tensor([*range(prefix), *(prefix + place for place in places)])

    def call(state: Any) -> Any:
        x = state.x if isinstance(state, Tokens) else state
        order = every.to(x.device)
        if not isinstance(state, Tokens):
            return block(x.index_select(1, order))
        size = None if state.size is None else state.size.index_select(1, order)
        return block(Tokens(x.index_select(1, order), size))

    return call


def _prefix(plan: SlimPlan, layer: int) -> Prefix:
    kept = None if plan.order is None else tuple(tuple(own) for own in plan.kept[:layer])
    return tuple(repr(step) for step in plan.steps[:layer]), kept


def _bytes(states: list[Any]) -> int:
    tensors = [part for state in states for part in ([state] if isinstance(state, Tensor) else state)]
    tensors = [part for part in tensors if isinstance(part, Tensor)]
    return sum(part.numel() * part.element_size() for part in tensors)
