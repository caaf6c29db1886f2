"""What hosts made of timm's blocks have in common, whatever comes before the blocks and after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from patchslim.hosts.base import HostInfo
from patchslim.hosts.block import BlockMath, BlockNames
from patchslim.hosts.projections import FusedQkv

TIMM_BLOCK = BlockNames("norm1", "attn", "norm2", FusedQkv(), scales=("ls1", "ls2"), drops=("drop_path1", "drop_path2"))


class TimmHost:
    """A model with timm's `blocks`, `norm` and `forward_head`."""

    heads: ClassVar[tuple[str, ...]]  # what the family calls its classifiers; a model may lack some

    def __init__(self, model: nn.Module, info: HostInfo) -> None:
        self.model: Any = model
        self.info = info
        self.math = BlockMath(TIMM_BLOCK)

    @classmethod
    def around(cls, model: nn.Module, info: HostInfo | None = None) -> Self:
        """A model whose blocks have been replaced, seen the same way: nothing is checked."""
        host = cls.__new__(cls)
        TimmHost.__init__(host, model, cls.info_of(model) if info is None else info)
        return host

    @staticmethod
    def info_of(model: nn.Module) -> HostInfo:
        """The description of a host, or of the host a slim model was made from: nothing is checked."""
        raise NotImplementedError

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

    def normed(self, block: nn.Module, x: Tensor) -> Tensor:
        """LN1(Z): (B, n, d) → (B, n, d)."""
        return self.math.normed(block, x)

    def attention(self, block: nn.Module, x: Tensor, n: int) -> Tensor:
        """P_l^h of the first `n` tokens: (B, n_in, d) → (B, H, n, n_in)."""
        return self.math.attention_map(block, x, n)

    def logits(self, tokens: Tensor) -> Tensor:
        """The host's output: (B, n, d) → (B, classes)."""
        return self.model.forward_head(self.model.norm(tokens))

    def slimmed_(self, blocks: Sequence[nn.Module]) -> nn.Module:
        """Put slim blocks in place of the model's own and return the model."""
        self.model.blocks = nn.Sequential(*blocks)
        return self.model
