"""Host blocks from which tokens go in the peers' ways, and the model made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from patchslim.hosts import Host
from patchslim.hosts.attention import Mix, plain, sized
from patchslim.hosts.base import BlockMath
from patchslim.peers.method import Job
from patchslim.slim.blocks import BlockOf
from patchslim.slim.tokens import Tokens


class Halving(nn.Module, ABC):
    """How tokens go between a block's attention and its MLP. Attention is looked at while it mixes, and no more of it
    is computed than the method reads."""

    @abstractmethod
    def mix(self, size: Tensor | None, seen: list[Tensor]) -> Mix:
        """Attention as the method wants it; puts what the method reads of it into `seen`."""

    @abstractmethod
    def forward(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """Tokens after attention → those that go on: (B, p + t, …) → (B, p + n, …)."""


def attention_of(size: Tensor | None) -> Mix:
    """Fused attention, proportional to sizes once there are any."""
    return plain if size is None else sized(size)


class HalfwayBlock(BlockOf):
    """Every token that comes in takes a query; then some go, and the others see the MLP."""

    def __init__(self, block: nn.Module, math: BlockMath, reduce: Halving | None, *, read: int = 0, last: bool) -> None:
        """`read`: the first tokens, if only they are computed at all; 0 for all."""
        super().__init__(block, math)
        self.reduce, self.read, self.last = reduce, read, last

    def forward(self, given: Tensor | Tokens, mask: None = None) -> Tensor | Tokens:
        """Tokens (B, p + t, …) → (B, p + n, …); the first block takes, and the last one gives, a plain tensor."""
        if not isinstance(given, Tokens):
            self.check_tokens(given)
        tokens = given if isinstance(given, Tokens) else Tokens(given)
        tokens = self._read_only(tokens) if self.read else self._all(tokens)
        return tokens.x if self.last else tokens

    def _all(self, tokens: Tokens) -> Tokens:
        seen: list[Tensor] = []
        mix = attention_of(tokens.size) if self.reduce is None else self.reduce.mix(tokens.size, seen)
        tokens = tokens._replace(x=self.math.attend(self, tokens.x, mix))
        if self.reduce is not None:
            tokens = self.reduce(tokens, seen[0])
        return tokens._replace(x=self.math.feed(self, tokens.x))

    def _read_only(self, tokens: Tokens) -> Tokens:
        if tokens.size is None:
            return Tokens(self.math.run(self, tokens.x, self.read))
        incoming = self.math.read(self, tokens.x)
        return Tokens(self.math.compute(self, tokens.x[:, : self.read], incoming, sized(tokens.size)))


class WholeBlock(BlockOf):
    """Tokens go before the block, or after it; in between it computes all it has."""

    def __init__(
        self,
        block: nn.Module,
        math: BlockMath,
        *,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
        read: int = 0,
    ) -> None:
        """`read`: the first tokens, if only they are computed; 0 for all. Parts keep names of their own."""
        super().__init__(block, math)
        self.read = read
        self.predictor = before or nn.Identity()  # what chooses is frozen in a recovery, by this name
        self.pool = after or nn.Identity()

    def forward(self, x: Tensor, mask: None = None) -> Tensor:
        """(B, p + t, d) → (B, p + n, d)."""
        self.check_tokens(x)
        x = self.predictor(x)
        x = self.math.run(self, x, self.read or x.shape[1])
        return self.pool(x)  # type: ignore[no-any-return]


def read_in(job: Job, layer: int) -> int:
    """How many tokens block `layer` (from 1) computes if only what is read counts; 0 where that is not asked for."""
    info = job.host.info
    only = job.config.readout_only and layer == info.depth and not info.reads_patches
    return info.prefix_tokens if only else 0


def made_from(host: Host, blocks: Sequence[nn.Module], macs: int) -> nn.Module:
    """The model with these blocks, embedding and head the host's; it can be recovered like a slim model."""
    info, first = host.info, blocks[0]
    if isinstance(first, BlockOf):
        first.tokens = info.tokens
    device = next(host.model.parameters()).device
    model: Any = host.slimmed_(blocks)
    model.host_info, model.macs_per_image = info, macs
    return model.to(device).eval()  # type: ignore[no-any-return]
