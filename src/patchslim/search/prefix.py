"""Candidates of a search often agree in their first blocks; what leaves those is kept, within a bound, and not computed
again. Where images choose or group for themselves, what leaves a block depends on the counts up to it and on no other.
"""

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

    def run(self, plan: SlimPlan, blocks: Sequence[Block], states: list[Any]) -> list[Any]:
        """What leaves the last block, of every batch; `states` enter the first."""
        prefixes = [_prefix(plan, layer) for layer in range(1, len(blocks))]
        known = next((layer for layer in range(len(prefixes), 0, -1) if prefixes[layer - 1] in self.states), 0)
        if known:
            states = self.states[prefixes[known - 1]]
            self.states.move_to_end(prefixes[known - 1])
        for prefix, block in zip(prefixes[known:], blocks[known:], strict=False):
            states = [block(state) for state in states]
            self._keep(prefix, states)
        return [blocks[-1](state) for state in states]

    def _keep(self, prefix: Prefix, states: list[Any]) -> None:
        """Remember, and forget what was not asked for the longest when there is no room."""
        self.states[prefix] = states
        self.used += _bytes(states)
        while self.used > self.limit_bytes and self.states:
            _, oldest = self.states.popitem(last=False)
            self.used -= _bytes(oldest)


def _prefix(plan: SlimPlan, layer: int) -> Prefix:
    kept = None if plan.order is None else tuple(tuple(own) for own in plan.kept[:layer])
    return tuple(repr(step) for step in plan.steps[:layer]), kept


def _bytes(states: list[Any]) -> int:
    parts = [part for state in states for part in ([state] if isinstance(state, Tensor) else state)]
    return sum(part.nbytes for part in parts if isinstance(part, Tensor))


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
        found.append(block if places == sorted(places) else _after_sorting(block, places, plan.host.prefix_tokens))
        alive = kept
    return found


def _after_sorting(block: Block, places: list[int], prefix: int) -> Block:
    every = torch.tensor([*range(prefix), *(prefix + place for place in places)])

    def call(state: Any) -> Any:
        if not isinstance(state, Tokens):
            return block(state.index_select(1, every.to(state.device)))
        order = every.to(state.x.device)
        size = None if state.size is None else state.size.index_select(1, order)
        return block(Tokens(state.x.index_select(1, order), size))

    return call
