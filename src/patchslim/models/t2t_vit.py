"""T2T-ViT (*Tokens-to-Token ViT*, Yuan et al., ICCV 2021), with the official parameter names, registered with timm."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from timm.layers import to_2tuple
from torch import Tensor

from patchslim.models.register import register
from patchslim.models.stem_vit import BlockSettings, StemViT
from patchslim.models.tokens_to_token import SPLITS, Splits, TokenPerformer, TokensToToken, TokensType


class T2TViT(StemViT):
    """A narrow, deep ViT behind the tokens-to-token module; positions are a fixed sinusoid."""

    stem_name = "tokens_to_token"

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        tokens_type: TokensType = "performer",
        token_dim: int = 64,
        splits: Splits = SPLITS,
        embed_dim: int = 384,
        depth: int = 14,
        **of_blocks: Unpack[BlockSettings],
    ) -> None:
        stem = TokensToToken(to_2tuple(img_size), in_chans, embed_dim, token_dim, tokens_type, splits)
        super().__init__(
            stem, in_chans=in_chans, num_classes=num_classes, embed_dim=embed_dim, depth=depth, **of_blocks
        )
        self.tokens_type: TokensType = tokens_type
        self.register_buffer("pos_embed", sinusoid(stem.num_patches + 1, embed_dim))  # never learnt
        self.init_weights_()

    def fixed(self) -> list[Tensor]:
        """The positions and the performers' random features."""
        performers = [module for module in self.modules() if isinstance(module, TokenPerformer)]
        return [self.pos_embed, *(performer.w for performer in performers)]


def sinusoid(positions: int, width: int) -> Tensor:
    """sin and cos of position / 10000^(2⌊j/2⌋ / d) in turns: (1, positions, d)."""
    pair = torch.arange(width, dtype=torch.float64) // 2
    angle = torch.arange(positions, dtype=torch.float64)[:, None] / 10000 ** (2 * pair / width)
    even = torch.arange(width) % 2 == 0
    return torch.where(even, angle.sin(), angle.cos()).float()[None]


def _variant(width: int, heads: int, ratio: float, depth: int, tokens_type: TokensType) -> dict[str, Any]:
    return {
        "tokens_type": tokens_type,
        "embed_dim": width,
        "depth": depth,
        "num_heads": heads,
        "mlp_ratio": ratio,
    }


VARIANTS = {  # under the official names; t: softmax attention in the stem
    "t2t_vit_7": _variant(256, 4, 2.0, 7, "performer"),
    "t2t_vit_10": _variant(256, 4, 2.0, 10, "performer"),
    "t2t_vit_12": _variant(256, 4, 2.0, 12, "performer"),
    "t2t_vit_14": _variant(384, 6, 3.0, 14, "performer"),
    "t2t_vit_19": _variant(448, 7, 3.0, 19, "performer"),
    "t2t_vit_24": _variant(512, 8, 3.0, 24, "performer"),
    "t2t_vit_t_14": _variant(384, 6, 3.0, 14, "transformer"),
    "t2t_vit_t_19": _variant(448, 7, 3.0, 19, "transformer"),
    "t2t_vit_t_24": _variant(512, 8, 3.0, 24, "transformer"),
}
register(T2TViT, VARIANTS)
