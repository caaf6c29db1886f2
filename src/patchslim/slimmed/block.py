"""A host block that computes fewer tokens: the host's own parts, and the step that decides which."""

from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PlanError
from patchslim.hosts import shell, whole
from patchslim.steps.packed import Packed, pack
from patchslim.steps.tokens import Tokens, start

State = Tokens | Packed  # what a step takes and gives


class Entrance(nn.Module):
    """What happens to tokens before the first block: static plans sort them, thresholds pack the batch."""

    order: Tensor | None

    def __init__(self, tokens: int, prefix: int, order: Tensor | None, packs: bool, tracks: bool, first: bool) -> None:
        """order (p + N,) or None for the host's own; `first`: whether tokens may lie in memory as (n, B, d)."""
        super().__init__()
        self.tokens, self.prefix, self.packs, self.tracks, self.first = tokens, prefix, packs, tracks, first
        self.register_buffer("order", order, persistent=False)

    def forward(self, x: Tensor, tracks: bool = False) -> State:
        """Z_0 (B, p + N, d) → state; with `tracks`, tokens know which input patches they stand for."""
        if x.shape[1] != self.tokens:
            raise PlanError(
                f"This slim model takes {self.tokens} tokens and got {x.shape[1]}; "
                "a plan holds for one image size, so make another for this one."
            )
        if self.packs:
            return pack(x, self.prefix)
        x = self._sorted(x)
        return start(x, self.prefix, self.order) if tracks or self.tracks else Tokens(x)

    def _sorted(self, x: Tensor) -> Tensor:
        """For inference on a GPU sorted tokens lie in memory as (n, B, d), so that every later slice is one piece.
        Stochastic depth, in training, would take that axis for the images."""
        if self.first and x.is_cuda and not torch.is_grad_enabled():
            x = x.transpose(0, 1)
            return (x.contiguous() if self.order is None else x.index_select(0, self.order)).transpose(0, 1)
        return x if self.order is None else x.index_select(1, self.order)


class SlimBlock(nn.Module):
    """Takes the place of a host block and holds its parts under their own names, beside the `step`."""

    def __init__(self, block: nn.Module, math: Any, step: nn.Module) -> None:
        super().__init__()
        for name, child in block.named_children():
            self.add_module(name, child)
        for name, parameter in block.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.host_shell = shell(block)
        self.math = math
        self.step = step
        learning = {name for name, parameter in step.named_parameters() if parameter.requires_grad}
        self.frozen = frozenset(step.state_dict()) - learning  # whatever is made to learn later, these never do
        self.entrance: Entrance | None = None  # of the first block
        self.last = False
        self.carries = False  # whether the last block gives all patches, to be put in the host's order again
        self.train(block.training)

    def forward(self, given: Tensor | State, mask: Tensor | None = None, **options: Any) -> Tensor | State:
        """Tokens (B, p + t, d) → (B, p + n, d); plain tensors where no token has merged."""
        # While a graph is traced transformers makes a mask that hides nothing; it is nobody's and goes unused.
        if mask is not None and not torch.compiler.is_compiling():
            raise PlanError("A slim model takes no attention mask: what it attends to is in its plan.")
        if options.get("output_hidden_states") or options.get("output_attentions"):
            raise PlanError(
                "A slim model gives no hidden states or attentions of its blocks: they are of fewer tokens; "
                "ask the host for them."
            )
        return self.leave(self.run(self.enter(given)))

    def enter(self, given: Tensor | State, tracks: bool = False) -> State:
        """What the step takes."""
        if isinstance(given, Tokens | Packed):
            return given
        return Tokens(given) if self.entrance is None else self.entrance(given, tracks)

    def run(self, state: State) -> State:
        """The step and the block."""
        return self.step(state, self)  # type: ignore[no-any-return]

    def leave(self, state: State) -> Tensor | State:
        """What the next block, or the head, is given."""
        if self.last:
            return self.tensor(state)
        plain = isinstance(state, Tokens) and state.size is None and state.owner is None
        return state.x if plain else state

    def tensor(self, state: State) -> Tensor:
        """What the head is given: (B, p + n, d)."""
        x = state.tensor()
        return x if not self.carries else x.index_select(1, self.back.to(x.device))

    back: Tensor

    def host_block(self) -> nn.Module:
        """A block as the host had it, of the parts that are here now."""
        return whole(self.host_shell, self)
