"""A host block that computes fewer tokens: the host's own parts, and the step that decides which."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from timm.models import register_notrace_module
from torch import Tensor, nn

from patchslim.errors import PlanError
from patchslim.hosts import shell, whole
from patchslim.hosts.shells import HOOKS, PARTS
from patchslim.slimmed.refuse import check_options
from patchslim.steps.packed import Packed, pack
from patchslim.steps.tokens import Tokens, start

State = Tokens | Packed  # what a step takes and gives


class Places(nn.Module):
    """Puts tokens in an order. The order is the plan's: whatever happens to the model's tensors, it is written anew."""

    index: Tensor

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__()
        self.places = tuple(places)
        self.register_buffer("index", torch.tensor(self.places, device="cpu"), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Also where a model is made of nothing (`to_empty`) the order is known."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.index = torch.tensor(self.places, device=self.index.device)
        return self

    def on(self, device: torch.device) -> Tensor:
        """(n,), on a device; made for the occasion where weights came in without `to`."""
        return self.index if self.index.device == device else torch.tensor(self.places, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, d) → the same tokens in order."""
        return x.index_select(1, self.on(x.device))


class Entrance(nn.Module):
    """What happens to tokens before the first block: static plans sort them, thresholds pack the batch."""

    def __init__(self, tokens: int, prefix: int, order: Places | None, packs: bool, tracks: bool, first: bool) -> None:
        """`order` of p + N tokens, None for the host's own; `first`: whether they may lie in memory as (n, B, d)."""
        super().__init__()
        self.tokens, self.prefix, self.packs, self.tracks, self.first = tokens, prefix, packs, tracks, first
        self.order = order

    def forward(self, x: Tensor, tracks: bool = False) -> State:
        """Z_0 (B, p + N, d) → state; with `tracks`, tokens know which input patches they stand for."""
        if x.shape[1] != self.tokens:
            raise PlanError(
                f"This slim model takes {self.tokens} tokens and got {x.shape[1]}; "
                "a plan holds for one image size, so make another for this one."
            )
        if self.packs:
            return pack(x, self.prefix)
        order = None if self.order is None else self.order.on(x.device)
        x = self._sorted(x, order)
        return start(x, self.prefix, order) if tracks or self.tracks else Tokens(x)

    def _sorted(self, x: Tensor, order: Tensor | None) -> Tensor:
        """For inference on a GPU sorted tokens lie in memory as (n, B, d), so that every later slice is one piece.
        Stochastic depth, in training, would take that axis for the images."""
        if self.first and x.is_cuda and not torch.is_grad_enabled():
            x = x.transpose(0, 1)
            return (x.contiguous() if order is None else x.index_select(0, order)).transpose(0, 1)
        return x if order is None else x.index_select(1, order)


@register_notrace_module  # graphs of torch.fx call it as it is
class SlimBlock(nn.Module):
    """Takes the place of a host block and holds its parts under their own names, beside the `step`."""

    # What transformers sets on layers, before slimming or after it.
    gradient_checkpointing = False
    _gradient_checkpointing_func: Any

    def __init__(self, block: nn.Module, math: Any, step: nn.Module) -> None:
        super().__init__()
        self.host_shell = shell(block)
        taken = {name: own for name, own in self.host_shell.settings.items() if name not in vars(self)}
        vars(self).update(taken)  # what somebody put on the block
        for part in PARTS:
            getattr(self, part).update(getattr(block, part))
        for hooks in HOOKS:
            getattr(self, hooks).update(getattr(block, hooks))
        self.math = math
        self.step = step
        self.frozen = frozenset(step.state_dict()) - getattr(step, "learns", frozenset())  # these never learn
        self.entrance: Entrance | None = None  # of the first block
        self.back: Places | None = None  # of the last: the host's order, where all patches are carried along
        self.last = False
        self.fewer = False  # whether it computes fewer patches than the image has
        self.train(block.training)

    def forward(self, given: Tensor | State, mask: Tensor | None = None, **options: Any) -> Tensor | State:
        """Tokens (B, p + t, d) → (B, p + n, d); plain tensors where no token has merged."""
        asked = {} if self.entrance is None else self.math.asked(self)
        check_options(asked | {"mask": mask} | options)
        state = self.enter(given)
        return self.leave(self._run_twice(state) if self.gradient_checkpointing and self.training else self.run(state))

    def enter(self, given: Tensor | State, tracks: bool = False) -> State:
        """What the step takes."""
        if isinstance(given, Tokens | Packed):
            return given
        return Tokens(given) if self.entrance is None else self.entrance(given, tracks)

    def run(self, state: State) -> State:
        """The step and the block."""
        return self.step(state, self)  # type: ignore[no-any-return]

    def _run_twice(self, state: State) -> State:
        """The same under gradient checkpointing, which looks for tensors in tuples only and knows no other state."""
        kind: Any = type(state)
        parts = self._gradient_checkpointing_func(lambda *own: tuple(self.run(kind(*own))), *state)
        return kind(*parts)  # type: ignore[no-any-return]

    def leave(self, state: State) -> Tensor | State:
        """What the next block, or the head, is given."""
        if self.last:
            return self.tensor(state)
        plain = isinstance(state, Tokens) and state.size is None and state.owner is None
        return state.x if plain else state

    def tensor(self, state: State) -> Tensor:
        """What the head is given: (B, p + n, d)."""
        x = state.tensor()
        return x if self.back is None else self.back(x)

    def host_block(self) -> nn.Module:
        """A block as the host had it, of the parts that are here now."""
        return whole(self.host_shell, self)
