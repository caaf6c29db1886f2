"""Host blocks that really compute fewer tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import PlanError
from patchslim.hosts.attention import plain, sized
from patchslim.hosts.base import BlockMath
from patchslim.slim.reduce import Reduce
from patchslim.slim.tokens import Tokens, sort_first, start


class BlockOf(nn.Module):
    """Takes the place of a host block and holds its parts under their own names."""

    def __init__(self, block: nn.Module, math: BlockMath) -> None:
        super().__init__()
        for name, child in block.named_children():
            self.add_module(name, child)
        for name, parameter in block.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.math = math
        self.tokens: int | None = None  # how many the first block takes
        self.train(block.training)

    def check_tokens(self, x: Tensor) -> None:
        """Raise PlanError when the image has another size than the plan was made for."""
        if self.tokens is not None and x.shape[1] != self.tokens:
            raise PlanError(
                f"This slim model takes {self.tokens} tokens and got {x.shape[1]}; "
                "a plan holds for one image size, so make another for this one."
            )

    def check_alone(self, mask: object, options: Mapping[str, Any]) -> None:
        """Raise PlanError for what transformers' models may hand to their layers and a slim block can't do."""
        # While a graph is traced transformers makes a mask that hides nothing; it is nobody's and goes unused.
        if mask is not None and not torch.compiler.is_compiling():
            raise PlanError("A slim model takes no attention mask: what it attends to is in its plan.")
        if options.get("output_hidden_states") or options.get("output_attentions"):
            raise PlanError(
                "A slim model gives no hidden states or attentions of its blocks: they are of fewer tokens; "
                "ask the host for them."
            )


class SlimBlock(BlockOf):
    """Static drop and carry: the first `keep` of sorted tokens.

    Patches are sorted once, by how long they stay, so every block's kept set is a prefix and slimming is a slice: no
    index tensor after the entrance, nothing for a compiler or an exporter to trip over.
    """

    order: Tensor | None
    restore: Tensor | None

    def __init__(self, block: nn.Module, math: BlockMath, keep: int, carry: bool) -> None:
        super().__init__(block, math)
        self.keep, self.carry = keep, carry
        self.register_buffer("order", None, persistent=False)
        self.register_buffer("restore", None, persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
        """(B, n_in, d) → (B, keep, d), or (B, n_in, d) when removed patches are carried along."""
        self.check_alone(mask, options)
        self.check_tokens(x)
        if self.tokens is not None:
            x = self._enter(x)
        x = self.math.run(self, x, self.keep, self.carry)
        return x if self.restore is None else x.index_select(1, self.restore)

    def _enter(self, x: Tensor) -> Tensor:
        """Sorted tokens: (B, n_in, d) → the same; for inference on a GPU they lie in memory as (n_in, B, d), so that
        every later block's slice is one piece. Stochastic depth, in training, would take that axis for the images."""
        if x.is_cuda and not torch.is_grad_enabled():
            x = x.transpose(0, 1)
            x = x.contiguous() if self.order is None else x.index_select(0, self.order)
            return x.transpose(0, 1)
        return x if self.order is None else x.index_select(1, self.order)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"keep={self.keep}, carry={self.carry}"


class ReducingBlock(BlockOf):
    """Any way of choosing whose batches stay rectangular: queries from what `reduce` keeps, keys and values from every
    incoming token, log(size) on the logits once something has merged."""

    order: Tensor | None

    def __init__(
        self,
        block: nn.Module,
        math: BlockMath,
        prefix: int,
        reduce: Reduce | None,
        predictor: nn.Module | None = None,
        distance: nn.Module | None = None,
        *,
        places: bool = False,
        last: bool = False,
    ) -> None:
        super().__init__(block, math)
        self.prefix, self.reduce, self.places, self.last = prefix, reduce, places, last
        self.watch: Callable[[Tokens], None] | None = None  # told what the block computes, see model.watching
        self.register_buffer("order", None, persistent=False)
        if predictor is not None:
            self.predictor = predictor
        self.distance = distance

    def forward(self, given: Tensor | Tokens, mask: Tensor | None = None, **options: Any) -> Tensor | Tokens:
        """Tokens (B, p + t, …) → (B, p + n, …); the first block takes, and the last one gives, a plain tensor."""
        self.check_alone(mask, options)
        tokens = given if isinstance(given, Tokens) else self._enter(given)
        mix = plain if tokens.size is None else sized(tokens.size)
        if self.reduce is None:
            kept = tokens
            x = self.math.feed(self, self.math.attend(self, tokens.x, mix))
        else:
            incoming = self.math.read(self, tokens.x)
            kept = self.reduce(tokens, incoming, self)
            x = self.math.compute(self, kept.x, incoming, mix, kept.normed)
        kept = kept._replace(x=x, normed=None)
        if self.watch is not None:
            self.watch(kept)
        return x if self.last else kept

    def _enter(self, x: Tensor) -> Tokens:
        self.check_tokens(x)
        tokens = start(x, self.prefix, self.places, self.watch is not None)
        return tokens if self.order is None else sort_first(tokens, self.order, self.prefix)
