"""T2T-ViT (*Tokens-to-Token ViT*, Yuan et al., ICCV 2021), with the official parameter names, registered with timm. Its
stem (sections 3.1, 3.2) unfolds overlapping patches into tokens, a small attention mixes them, again, and once more."""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from timm.layers import Mlp, to_2tuple, use_fused_attn
from torch import Tensor, nn

from patchslim.errors import UnsupportedModel
from patchslim.models.stem_vit import Stem, StemViT, linear_macs, register

TokensType = Literal["performer", "transformer"]
Splits = Sequence[tuple[int, int, int]]  # kernel, stride, padding of the three soft splits
SPLITS: Splits = ((7, 4, 2), (3, 2, 1), (3, 2, 1))
SCALE = 1e8  # 1 / ε of the performer's a / (b + ε); both are multiplied by it, as exporters take + 1e-8 for + 0


def soft_split(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Overlapping windows as tokens: (B, C, H, W) → (B, n, C · kernel²), what `F.unfold` gives, transposed.

    Made of reshapes and slices, which runtimes have everywhere; needs stride < kernel ≤ 2 · stride.
    """
    x = _windows(_windows(x, kernel, stride, padding).movedim(2, -1), kernel, stride, padding)
    return x.permute(0, 4, 2, 1, 5, 3).flatten(3).flatten(1, 2)  # (B, C, ow, kw, oh, kh) → (B, oh · ow, C · kh · kw)


def _windows(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Windows along the last axis, each a piece of `stride` numbers and the beginning of the next: → (…, n, kernel)."""
    n = count_windows(x.shape[-1], kernel, stride, padding)
    pieces = F.pad(x, (padding, (n + 1) * stride - padding - x.shape[-1])).unflatten(-1, (n + 1, stride))
    return torch.cat([pieces[..., :-1, :], pieces[..., 1:, : kernel - stride]], dim=-1)


def count_windows(side: int, kernel: int, stride: int, padding: int) -> int:
    """How many windows fit along a side."""
    return (side + 2 * padding - kernel) // stride + 1


class TokenPerformer(nn.Module):
    """Attention in linear time: exp(q·k) as a product of positive random features (Performer, Choromanski et al.)."""

    w: Tensor

    def __init__(self, dim: int, out_dim: int, kernel_ratio: float = 0.5, dropout: float = 0.1) -> None:
        super().__init__()
        self.out_dim = out_dim
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(out_dim)
        self.kqv = nn.Linear(dim, 3 * out_dim)
        self.proj, self.dp = nn.Linear(out_dim, out_dim), nn.Dropout(dropout)
        self.mlp = nn.Sequential(
            nn.Linear(out_dim, out_dim), nn.GELU(), nn.Linear(out_dim, out_dim), nn.Dropout(dropout)
        )
        features = int(out_dim * kernel_ratio)
        # Never learnt, so a buffer; its name in a state dict is the same.
        self.register_buffer("w", nn.init.orthogonal_(torch.empty(features, out_dim)) * math.sqrt(features))

    def macs(self, tokens: int) -> int:
        """Linear layers; features of q and k; the sum over keys, its product with queries, and its normaliser."""
        features = self.w.shape[0]
        return tokens * (linear_macs(self) + 4 * features * self.out_dim + features)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, dim) → (B, n, out_dim)."""
        k, q, v = self.kqv(self.norm1(x)).chunk(3, dim=-1)
        k_features, q_features = self._features(k), self._features(q)  # (B, n, m)
        normaliser = q_features @ k_features.sum(dim=1, keepdim=True).transpose(1, 2)  # (B, n, 1)
        summed = k_features.transpose(1, 2) @ v.to(k_features.dtype)  # (B, m, out_dim)
        above, below = ((SCALE * part.to(k_features.dtype)) for part in (q_features @ summed, normaliser))
        mixed = (above / (below + 1)).to(v.dtype)
        x = v + self.dp(self.proj(mixed))  # widths differ, so the shortcut starts at the values
        return x + self.mlp(self.norm2(x))

    def _features(self, x: Tensor) -> Tensor:
        """exp(w·x − |x|²/2) / √m, in at least fp32: (B, n, out_dim) → (B, n, m)."""
        precise = torch.promote_types(x.dtype, torch.float32)
        half_square = x.to(precise).square().sum(dim=-1, keepdim=True) / 2
        return (F.linear(x, self.w).to(precise) - half_square).exp() / math.sqrt(self.w.shape[0])


class TokenAttention(nn.Module):
    """One head of softmax attention from `dim` to `out_dim`, the shortcut from the values."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.scale = dim**-0.5  # by the width that comes in, as the official weights expect
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(dim, 3 * out_dim, bias=False)
        self.proj = nn.Linear(out_dim, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, dim) → (B, n, out_dim)."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.fused_attn:
            heads = (part[:, None] for part in (q, k, v))  # (B, 1, n, out_dim)
            mixed = F.scaled_dot_product_attention(*heads, scale=self.scale)[:, 0]  # type: ignore[misc]
        else:
            mixed = (q * self.scale @ k.transpose(1, 2)).softmax(dim=-1) @ v
        return v + self.proj(mixed)


class TokenTransformer(nn.Module):
    """The same with softmax attention: exact, and quadratic in the number of tokens."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.out_dim = out_dim
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(out_dim)
        self.attn = TokenAttention(dim, out_dim)
        self.mlp = Mlp(out_dim, out_dim)

    def macs(self, tokens: int) -> int:
        """Linear layers and both products of attention."""
        return tokens * (linear_macs(self) + 2 * tokens * self.out_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, dim) → (B, n, out_dim)."""
        x = self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TokensToToken(Stem):
    """Three soft splits with attention between them: one token for every 16×16 pixels, from overlapping windows."""

    def __init__(
        self,
        img_size: tuple[int, int],
        in_chans: int,
        embed_dim: int,
        token_dim: int,
        tokens_type: TokensType,
        splits: Splits = SPLITS,
    ) -> None:
        if tokens_type not in get_args(TokensType):
            raise UnsupportedModel(f"There is no tokens_type {tokens_type!r}; choose one of performer, transformer.")
        grids = [img_size]
        for split in splits:
            height, width = grids[-1]
            grids.append((count_windows(height, *split), count_windows(width, *split)))
        patch = math.prod(stride for _, stride, _ in splits)
        super().__init__(img_size, grids[-1], patch, in_chans, embed_dim)
        self.grids, self.splits = grids[1:], tuple(map(tuple, splits))
        layer = TokenPerformer if tokens_type == "performer" else TokenTransformer
        (first, *_), (second, *_), (third, *_) = splits
        self.attention1 = layer(in_chans * first**2, token_dim)
        self.attention2 = layer(token_dim * second**2, token_dim)
        self.project = nn.Linear(token_dim * third**2, embed_dim)

    def macs(self) -> int:
        """Multiply-accumulates per image."""
        first, second, last = (math.prod(grid) for grid in self.grids)
        return self.attention1.macs(first) + self.attention2.macs(second) + last * self.project.weight.numel()

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, N, d)."""
        first, second, third = self.splits
        x = self.attention1(soft_split(images, *first))
        x = self.attention2(soft_split(self._as_image(x, 0), *second))
        return self.project(soft_split(self._as_image(x, 1), *third))

    def _as_image(self, x: Tensor, stage: int) -> Tensor:
        """Tokens in their places: (B, n, c) → (B, c, h, w)."""
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *self.grids[stage])


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
        **of_blocks: Any,  # as StemViT takes them
    ) -> None:
        stem = TokensToToken(to_2tuple(img_size), in_chans, embed_dim, token_dim, tokens_type, splits)
        super().__init__(stem, num_classes=num_classes, depth=depth, **of_blocks)
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
    return {"tokens_type": tokens_type, "embed_dim": width, "depth": depth, "num_heads": heads, "mlp_ratio": ratio}


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
