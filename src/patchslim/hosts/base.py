"""What patchslim needs to know of a host model, whatever library it comes from."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from patchslim.errors import PlanError
from patchslim.hosts.block import BlockMath, BlockNames

Readout = Literal["class", "class+distillation", "class+auxiliary", "class+mean", "mean", "attention-pool"]
PATCH_READOUTS = ("class+auxiliary", "class+mean", "mean", "attention-pool")  # they read patches of the last block


@dataclass(frozen=True)
class BlockShape:
    """Widths of one block, enough to count its multiply-accumulates."""

    width: int
    attention_width: int
    mlp_macs: int  # per token


@dataclass(frozen=True)
class HostInfo:
    """A host's description. Counts of patches leave prefix tokens (class, distillation, registers) out."""

    name: str
    family: str
    depth: int
    width: int
    heads: int
    prefix_tokens: int
    patches: int
    grid: tuple[int, int]
    readout: Readout
    image_size: tuple[int, int]
    channels: int
    classes: int
    parameters: int
    blocks: tuple[BlockShape, ...]
    embed_macs: int  # patch embedding, per image
    head_macs: int  # pooling and classifier, the part that does not depend on the token count
    head_macs_per_token: int = 0  # the part of an attention pool that does, per token read
    head_reads_prefix: bool = False  # whether the pool reads prefix tokens too

    @property
    def reads_patches(self) -> bool:
        """Whether the head reads patches of the last block, not only prefix tokens."""
        return self.readout in PATCH_READOUTS

    @property
    def reads_class(self) -> bool:
        """Whether the head reads a class token, so that its attention tells which patches matter."""
        return self.readout.startswith("class")

    @property
    def tokens(self) -> int:
        """Tokens that enter block 1: prefix and patches."""
        return self.prefix_tokens + self.patches

    @property
    def first_pooled(self) -> int:
        """The first token that a pool reads."""
        return 0 if self.head_reads_prefix else self.prefix_tokens

    def __str__(self) -> str:
        height, width = self.image_size
        return (
            f"{self.name} ({self.family}): depth {self.depth}, width {self.width}, heads {self.heads}, "
            f"prefix tokens {self.prefix_tokens}, patches {self.patches} ({self.grid[0]}×{self.grid[1]} of "
            f"{height}×{width} pixels), readout {self.readout}, classes {self.classes}"
        )


class Host(ABC):
    """A host model, or a slim one, seen through its family's eyes: nothing is checked, `slimmed_` alone changes it."""

    def __init__(self, model: nn.Module, blocks: str, names: BlockNames, info: HostInfo | None) -> None:
        """`blocks` is the dotted name of the module that holds them. `info` is read off the model where it is None."""
        self.model: Any = model
        self.at, self.math = blocks, BlockMath(names)
        self.info = self.described() if info is None else info

    @property
    @abstractmethod
    def embedding(self) -> nn.Module:
        """The module that is given the images."""

    @staticmethod
    @abstractmethod
    def classifiers_of(model: nn.Module) -> Sequence[nn.Module]:
        """The classifiers of a model of the family, what turns features into logits; a model may lack some."""

    @abstractmethod
    def described(self) -> HostInfo:
        """The host's description, read off the model."""

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Z_0: images (B, C, H, W) → tokens (B, p + N, d), prefix first."""

    @abstractmethod
    def features(self, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """What the classifier reads, from the output of the last block: (B, n, d) → (B, d), or wider.

        `weight` (B, n) says how much each token counts where the head pools; 0 is as if it were not there.
        """

    @abstractmethod
    def logits(self, tokens: Tensor) -> Tensor:
        """The host's output from the output of the last block: (B, n, d) → (B, classes)."""

    @abstractmethod
    def pool_rows(self, tokens: Tensor) -> Tensor:
        """An attention pool's own rows: (B, n, d) → (B, heads, n), each summing to 1."""

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last."""
        return list(self.model.get_submodule(self.at))

    def slimmed_(self, blocks: Sequence[nn.Module]) -> nn.Module:
        """Put slim blocks in place of the model's own (changes the model) and return it."""
        own = self.model.get_submodule(self.at)
        others = nn.Sequential(*blocks) if isinstance(own, nn.Sequential) else nn.ModuleList(blocks)
        others.training = own.training  # the blocks have their own modes
        self.model.set_submodule(self.at, others)
        self.embedding.register_forward_pre_hook(OneSize(*self.info.image_size))
        return self.model

    @property
    def classifiers(self) -> Sequence[nn.Module]:
        """The classifiers."""
        return self.classifiers_of(self.model)

    def normed(self, block: nn.Module, x: Tensor) -> Tensor:
        """The block's attention input, LN1(Z): (B, n, d) → (B, n, d)."""
        return self.math.normed(block, x)

    def attention(self, block: nn.Module, x: Tensor, n: int) -> Tensor:
        """P_l^h for the first `n` tokens: (B, n_in, d) → (B, H, n, n_in), rows sum to 1."""
        return self.math.attention_map(block, x, n)

    def readout_moment(self, tokens: Tensor) -> Tensor:
        """R of the impact recursion over the output of the last block: (B, n, d) → (B, n, n).

        A row for each token read and for the mean; one for each head of a pool, and those weigh one together.
        """
        batch, n, _ = tokens.shape
        if self.info.readout == "attention-pool":
            rows = self.pool_rows(tokens)
            return rows.transpose(1, 2) @ rows / rows.shape[1]
        rows, first = torch.zeros(2, n, device=tokens.device), self.info.first_pooled
        if self.info.reads_class:
            rows[0, 0] = 1
        if self.info.readout == "class+distillation":
            rows[1, 1] = 1
        elif self.info.readout in ("class+mean", "mean"):
            rows[1, first:] = 1 / (n - first)
        return (rows[:, :, None] * rows[:, None]).sum(dim=0).expand(batch, n, n)

    @property
    def has_patch_head(self) -> bool:
        """Whether there is a head on every patch, beside what gives the logits."""
        return False

    def patch_logits(self, tokens: Tensor) -> Tensor:
        """What it says of every patch of the last block's output: (B, p + n, d) → (B, n, classes)."""
        raise NotImplementedError


@dataclass(frozen=True)
class OneSize:
    """Looks at what an embedding is given: a plan is for images of one size, and another may make as many patches."""

    height: int
    width: int

    def __call__(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        """Images (B, C, H, W); PlanError where they are of another size."""
        sizes = {"is set to": getattr(module, "img_size", None)}  # timm's models can be set to another size
        if given and isinstance(given[0], Tensor):  # a graph may be traced with something else
            sizes["got"] = given[0].shape[-2:]
        for how, size in sizes.items():
            if size is not None and tuple(size) != (self.height, self.width):
                raise PlanError(
                    f"This slim model takes images of {self.height}×{self.width} pixels and {how} {size[0]}×{size[1]}; "
                    "a plan holds for one image size, so make another for this one."
                )


def weighted_mean(tokens: Tensor, weight: Tensor) -> Tensor:
    """The mean token, each counting by its weight: (B, n, d), (B, n) → (B, d)."""
    return (tokens * weight[..., None]).sum(dim=1) / weight.sum(dim=1, keepdim=True)
