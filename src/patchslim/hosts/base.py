"""What patchslim needs to know of a host model, whatever library it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from patchslim.hosts.block import BlockMath

Readout = Literal["class", "class+distillation", "class+auxiliary", "class+mean", "mean", "attention-pool"]
# Those that read patches of the last block.
PATCH_READOUTS = ("class+auxiliary", "class+mean", "mean", "attention-pool")


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
    head_macs_per_token: int  # the part of an attention pool that does, per token read
    head_reads_prefix: bool  # whether the pool reads prefix tokens too

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

    def __str__(self) -> str:
        height, width = self.image_size
        return (
            f"{self.name} ({self.family}): depth {self.depth}, width {self.width}, heads {self.heads}, "
            f"prefix tokens {self.prefix_tokens}, patches {self.patches} ({self.grid[0]}×{self.grid[1]} of "
            f"{height}×{width} pixels), readout {self.readout}, classes {self.classes}"
        )


class Host(Protocol):
    """One host model seen through its family's eyes. Methods never change the model."""

    model: nn.Module
    info: HostInfo
    math: BlockMath

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last."""

    @property
    def classifiers(self) -> Sequence[nn.Module]:
        """The classifiers: what turns features into logits."""

    def embed(self, images: Tensor) -> Tensor:
        """Z_0: images (B, C, H, W) → tokens (B, p + N, d), prefix first."""

    def normed(self, block: nn.Module, x: Tensor) -> Tensor:
        """The block's attention input, LN1(Z): (B, n, d) → (B, n, d)."""

    def attention(self, block: nn.Module, x: Tensor, n: int) -> Tensor:
        """P_l^h for the first `n` tokens: (B, n_in, d) → (B, H, n, n_in), rows sum to 1."""

    def features(self, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """What the classifier reads, from the output of the last block: (B, n, d) → (B, d), or wider.

        `weight` (B, n) says how much each token counts where the head pools; 0 is as if it were not there.
        """

    def logits(self, tokens: Tensor) -> Tensor:
        """The host's output from the output of the last block: (B, n, d) → (B, classes)."""

    def readout_moment(self, tokens: Tensor) -> Tensor:
        """R of the impact recursion over the output of the last block: (B, n, d) → (B, n, n)."""

    def slimmed_(self, blocks: Sequence[nn.Module]) -> nn.Module:
        """Put slim blocks in place of the model's own (changes the model) and return it."""

    def spec(self) -> Mapping[str, Any]:
        """JSON-able settings from which the family can build the host again."""


@runtime_checkable
class PatchHead(Protocol):
    """What a host has beside `Host` when its family may have a head on every patch."""

    @property
    def has_patch_head(self) -> bool:
        """Whether this one has."""

    def patch_logits(self, tokens: Tensor) -> Tensor:
        """What it says of every patch of the last block's output: (B, p + n, d) → (B, n, classes)."""
