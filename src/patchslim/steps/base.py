"""What a step is: how one block comes by the tokens it computes.

A kind of step is one file in this folder. It owns the step's JSON, the module that runs it, its MACs and its
full-shape reference. Nothing else in patchslim asks which kind a step is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from patchslim.hosts import Host, HostInfo, Incoming
from patchslim.kernels.attention import Mix
from patchslim.steps.counting import Work
from patchslim.steps.tokens import Tokens

Count = int


class Step(BaseModel):
    """How a block comes by the tokens it computes. Numbers of patches leave prefix tokens out."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ordered: ClassVar[bool] = False  # takes patches in the plan's order
    per_image: ClassVar[bool] = False  # tokens stand for other patches in one image than in another
    rectangular: ClassVar[bool] = True  # all images keep equally many patches
    takes_sizes: ClassVar[bool] = True  # can take tokens that stand for several patches
    exact: ClassVar[bool] = True  # what a token stands for is known patch by patch
    placed: ClassVar[bool] = True  # afterwards it is known where each patch token sits

    kind: str

    def kept(self, entering: int) -> int:
        """Patches that the block computes, of those that enter."""
        return entering

    def leaving(self, entering: int) -> int:
        """Patches that the next block sees."""
        return self.kept(entering)

    def bounds(self, least: int, most: int) -> tuple[int, int]:
        """The fewest and the most patches that images have afterwards, by those that they have before."""
        return self.leaving(least), self.leaving(most)

    def check(self, entering: int) -> None:
        """Raise ValueError, in words that follow `block 3`, when the step can't be done."""

    @property
    def sizes(self) -> bool:
        """Whether a token may stand for several patches afterwards."""
        return False

    @property
    def tracks(self) -> bool:
        """Whether the step has to know where each patch sits."""
        return False

    @property
    def packs(self) -> bool:
        """Whether the step can be done where images have different numbers of patches."""
        return not self.rectangular

    def work(self, info: HostInfo, layer: int, entering: int) -> Work:
        """What block `layer` (from 1) computes."""
        tokens, n = info.prefix_tokens + entering, info.prefix_tokens + self.kept(entering)
        return Work(tokens, n, n)

    def macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """MACs of block `layer` (from 1), choosing and merging included."""
        return self.work(info, layer, entering).macs(info.blocks[layer - 1])

    def image_macs(self, info: HostInfo, layer: int, entering: int, kept: int) -> int:
        """The same for one image of which `kept` patches stay, where images differ."""
        tokens, n = info.prefix_tokens + entering, info.prefix_tokens + kept
        return Work(tokens, n, n).macs(info.blocks[layer - 1])

    def module(self, info: HostInfo, layer: int, entering: int) -> nn.Module:
        """What runs the step in block `layer` (from 1): maps (state, block) to state. What it learnt is its own."""
        raise NotImplementedError

    def reference(self, seen: Seen) -> Choice:
        """The same for one image, in plain loops, for the masked reference."""
        raise ValueError(f"the step {self.kind!r} has no masked reference")


class Counted(Step):
    """A step that keeps a given number of patches."""

    n: int = Field(ge=0)

    def kept(self, entering: int) -> int:
        """As the plan says."""
        return self.n

    def check(self, entering: int) -> None:
        """No more than enter, and something to choose from."""
        if self.n > entering:
            raise ValueError(f"keeps {self.n} patches of {entering} that come in")


def check_stays(n: int, entering: int, half: bool) -> None:
    """Raise ValueError unless some patches stay; at least half of them, of two or more, where they pair."""
    if n < 1:
        raise ValueError("keeps no patch to merge into or to choose")
    if half and entering < 2:
        raise ValueError("has one patch, and that has none to pair with")
    if half and n < entering // 2:
        raise ValueError(f"keeps {n} of {entering} patches; pairs keep at least half")


KINDS: dict[str, type[Step]] = {}
OneStep = TypeVar("OneStep", bound=Step)


def register_step(cls: type[OneStep]) -> type[OneStep]:
    """Make a kind of step known by its `kind`."""
    KINDS[cls.model_fields["kind"].default] = cls
    return cls


def read_step(data: Any) -> Step:
    """A step from JSON; ValueError in words when it is none."""
    if isinstance(data, Step):
        return data
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"there is no step {kind!r}; known are {', '.join(sorted(KINDS))}")
    return KINDS[kind].model_validate(data)


class Reducing(nn.Module):
    """Runs a step that decides first: queries from what `reduce` leaves, keys and values from all that came in."""

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix

    def forward(self, state: Any, block: Any) -> Any:
        """State → state (paper, Eq. 2, with any tokens for queries)."""
        incoming = block.math.read(block, state.x)
        kept = self.reduce(state, incoming, block)
        x = block.math.compute(block, kept.x, incoming, state.mix(kept), getattr(kept, "normed", None))
        return kept._replace(x=x, normed=None) if isinstance(kept, Tokens) else kept._replace(x=x)

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Any:
        """The tokens that take queries."""
        raise NotImplementedError

    def class_attention(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tensor:
        """The class token's attention to the patches, mean 1: (B, t)."""
        attention: Tensor = block.math.class_attention(block, incoming, tokens.size)[:, self.prefix :]
        return attention * attention.shape[1]


class Halfway(nn.Module):
    """Runs a step that decides between attention and MLP: every token attends, those that stay pass the MLP."""

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix

    def forward(self, tokens: Tokens, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        seen: list[Tensor] = []
        x = block.math.attend(block, tokens.x, self.mix(tokens.mix(tokens), seen))
        kept = self.reduce(tokens._replace(x=x), seen[0])
        return kept._replace(x=block.math.feed(block, kept.x))

    def mix(self, attention: Mix, seen: list[Tensor]) -> Mix:
        """Attention as the method wants it; puts what the method reads of it into `seen`."""
        raise NotImplementedError

    def reduce(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """The tokens that go on."""
        raise NotImplementedError


class Choice(NamedTuple):
    """What a step decides for one image."""

    kept: list[int]  # input patches that are computed, in the order of the slim model's tokens
    into: Mapping[int, int] = {}  # patch that goes → patch that it joins
    weight: Mapping[int, float] = {}  # how much each counts in an average
    stays: bool = False  # whether the others stay to be read


@dataclass(frozen=True)
class Seen:
    """What a step sees of one image (or of a batch that all go the same way), at full shape."""

    host: Host
    layer: int  # from 1
    x: Tensor  # (B, p + N, d), every patch in its own place
    alive: list[int]  # patches that are still there, in the order of the slim model's tokens
    size: list[float]  # of every input patch
    own: nn.Module  # what the step owns
    first: list[int]  # the plan's patches for this block, where it has an order

    @property
    def block(self) -> nn.Module:
        """The host's block."""
        return self.host.blocks[self.layer - 1]

    def incoming(self) -> Incoming:
        """What the block reads of the living patches."""
        prefix = self.host.info.prefix_tokens
        return self.host.math.read(self.block, self.x[:, [*range(prefix), *(prefix + patch for patch in self.alive)]])

    def weights(self, incoming: Incoming) -> list[float]:
        """How much the living patches count: by class attention, mean 1, where a class token is read, else by size."""
        sizes = [self.size[patch] for patch in self.alive]
        if not self.host.info.reads_class:
            return sizes
        prefix = self.host.info.prefix_tokens
        every = self.x.new_tensor([[1.0] * prefix + sizes])
        attention = self.host.math.class_attention(self.block, incoming, every)[0, prefix:] * len(self.alive)
        return attention.tolist()
