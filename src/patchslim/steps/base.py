"""What a step is: how one block comes by the tokens it computes.

A kind of step is one file in this folder. It owns the step's JSON, the module that runs it, its MACs and its
full-shape reference. Nothing else in patchslim asks which kind a step is.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from patchslim.hosts import BlockShape, HostInfo, Incoming
from patchslim.hosts.parts import bare
from patchslim.kernels.attention import Mix
from patchslim.steps.reference import Choice, Seen
from patchslim.steps.tokens import Tokens

WIDEST = 2**12  # layers of what a step learns; a plan that asks for wider ones is damaged


class Work(NamedTuple):
    """What one block computes: numbers of tokens, prefix included, and the MACs of choosing and merging."""

    keys: int  # tokens that give keys and values
    queries: int  # tokens that attend
    fed: int  # tokens that pass the MLP
    choice: int = 0  # MACs of choosing patches and of merging them

    def macs(self, shape: BlockShape) -> int:
        """MACs of the block (paper, "Computation Efficiency"): projections, two products of attention, the MLP.

        One multiply-add counts as one; only matrix products count.
        """
        projection = shape.width * shape.attention_width
        attention = 2 * self.queries * self.keys * shape.attention_width
        return 2 * (self.keys + self.queries) * projection + attention + self.fed * shape.mlp_macs + self.choice


class Step(BaseModel):
    """How a block comes by the tokens it computes. Numbers of patches leave prefix tokens out."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ordered: ClassVar[bool] = False  # takes patches in the plan's order
    per_image: ClassVar[bool] = False  # tokens stand for other patches in one image than in another
    rectangular: ClassVar[bool] = True  # all images keep equally many patches
    takes_sizes: ClassVar[bool] = True  # can take tokens that stand for several patches
    exact: ClassVar[bool] = True  # what a token stands for is known patch by patch
    placed: ClassVar[bool] = True  # afterwards it is known where each patch token sits
    halfway: ClassVar[bool] = False  # every token attends, and those that stay pass the MLP
    runner: ClassVar[type["Runner"]]  # the class that names this one as what it `runs`
    kind: str

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

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """MACs of choosing patches and of merging them."""
        return 0

    def work(self, info: HostInfo, layer: int, entering: int, kept: int | None = None) -> Work:
        """What block `layer` (from 1) computes; `kept` are one image's patches where images differ."""
        tokens = info.prefix_tokens + entering
        n = info.prefix_tokens + (self.kept(entering) if kept is None else kept)
        return Work(tokens, tokens if self.halfway else n, n, self.choice_macs(info, layer, entering))

    def macs(self, info: HostInfo, layer: int, entering: int, kept: int | None = None) -> int:
        """MACs of that, choosing and merging included."""
        return self.work(info, layer, entering, kept).macs(info.blocks[layer - 1])

    def module(self, info: HostInfo, layer: int, entering: int) -> nn.Module:
        """What runs the step in block `layer` (from 1)."""
        return self.runner(self, info, layer, entering)

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
        """No more than enter."""
        if self.n > entering:
            raise ValueError(f"keeps {self.n} patches of {entering} that come in")


class Choosing(Counted):
    """A step that keeps a given number of patches, at least one, and asks each image which, or what joins them."""

    per_image: ClassVar[bool] = True
    fewest: ClassVar[int] = 1  # tokens that stay at least

    def check(self, entering: int) -> None:
        """Some patches stay."""
        super().check(entering)
        if self.n < self.fewest:
            raise ValueError("keeps no patch to merge into or to choose")


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


def class_attention_macs(info: HostInfo, shape: BlockShape, patches: int) -> int:
    """The class token's own row of attention, where the head reads a class token."""
    return (shape.width + info.prefix_tokens + patches) * shape.attention_width if info.reads_class else 0


class Runner(nn.Module):
    """Runs a kind of step: maps (state, block) to state. `part` names what it learnt and owns, if anything."""

    part: ClassVar[str | None] = None
    learns: ClassVar[frozenset[str]] = frozenset()  # names of its own parameters that a recovery may train

    def __init_subclass__(cls, runs: type[Step] | None = None) -> None:
        super().__init_subclass__()
        if runs is not None:
            runs.runner = cls

    def __init__(self, step: Any, info: HostInfo, layer: int, entering: int) -> None:
        super().__init__()
        self.n, self.prefix, self.reads_class = step.kept(entering), info.prefix_tokens, info.reads_class

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"n={self.n}"


class Reducing(Runner):
    """Runs a step that decides first: queries from what `reduce` leaves, keys and values from all that came in."""

    def forward(self, state: Any, block: Any) -> Any:
        """State → state (paper, Eq. 2, with any tokens for queries)."""
        incoming = block.math.read(block, state.x)
        kept = self.reduce(state, incoming, block)
        x = block.math.compute(block, kept.x, incoming, state.mix(kept), getattr(kept, "normed", None))
        return kept._replace(x=x, normed=None) if isinstance(kept, Tokens) else kept._replace(x=x)

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Any:
        """The tokens that take queries."""
        raise NotImplementedError

    def norm(self, block: Any) -> nn.Module | None:
        """The block's LN1, where nothing but its weights and bias says what it does."""
        first: nn.Module = block.math.first_norm(block)
        return first if bare(first) else None  # what hooks it has is called

    def class_attention(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tensor | None:
        """The class token's attention to the patches, mean 1: (B, t); None where the head reads no class token."""
        if not self.reads_class:
            return None
        attention: Tensor = block.math.class_attention(block, incoming, tokens.size)[:, self.prefix :]
        return attention * attention.shape[1]


class Halfway(Runner):
    """Runs a step that decides between attention and MLP: every token attends, those that stay pass the MLP."""

    def forward(self, tokens: Tokens, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        attention = tokens.mix(tokens)
        seen: list[Tensor] = []

        def mix(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
            mixed, read = self.attend(attention, q, k, v, scale=scale, dropout=dropout, fused=fused)
            seen.append(read)
            return mixed

        x = block.math.attend(block, tokens.x, mix)
        kept = self.reduce(tokens._replace(x=x), seen[0])
        return kept._replace(x=block.math.feed(block, kept.x))

    def attend(self, attention: Mix, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """Attention as the step wants it, and what it goes by."""
        return attention(q, k, v, **how), self.read(q, k, how["scale"])

    def read(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """What the step goes by, from queries and keys (B, H, p + t, d_h)."""
        raise NotImplementedError

    def reduce(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """The tokens that go on."""
        raise NotImplementedError
