"""What hosts made of timm's blocks have in common, whatever comes before the blocks and after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from patchslim.hosts import timm_block
from patchslim.hosts.base import BlockMath, HostInfo


class TimmHost:
    """A model with timm's `blocks`, `norm` and `forward_head`."""

    heads: ClassVar[tuple[str, ...]]  # what the family calls its classifiers; a model may lack some

    def __init__(self, model: nn.Module, info: HostInfo) -> None:
        self.model: Any = model
        self.info = info
        self.math: BlockMath = timm_block.TimmBlockMath()

    @classmethod
    def around(cls, model: nn.Module, info: HostInfo) -> Self:
        """A model whose blocks have been replaced, seen the same way: nothing is checked."""
        host = cls.__new__(cls)
        TimmHost.__init__(host, model, info)
        return host

    @classmethod
    def classifiers_of(cls, model: nn.Module) -> Sequence[nn.Module]:
        """The classifiers that a model of this family has."""
        return [getattr(model, name) for name in cls.heads if hasattr(model, name)]

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last."""
        return list(self.model.blocks)

    @property
    def classifiers(self) -> Sequence[nn.Module]:
        """The classifiers."""
        return self.classifiers_of(self.model)

    def normed(self, block: Any, x: Tensor) -> Tensor:
        """LN1(Z): (B, n, d) → (B, n, d)."""
        return block.norm1(x)  # type: ignore[no-any-return]

    def attention(self, block: nn.Module, x: Tensor, n: int) -> Tensor:
        """P_l^h of the first `n` tokens: (B, n_in, d) → (B, H, n, n_in)."""
        return timm_block.attention_map(block, x, n)

    def logits(self, tokens: Tensor) -> Tensor:
        """The host's output: (B, n, d) → (B, classes)."""
        return self.model.forward_head(self.model.norm(tokens))  # type: ignore[no-any-return]

    def slimmed_(self, blocks: Sequence[nn.Module]) -> nn.Module:
        """Put slim blocks in place of the model's own and return the model."""
        self.model.blocks = nn.Sequential(*blocks)
        return self.model  # type: ignore[no-any-return]
