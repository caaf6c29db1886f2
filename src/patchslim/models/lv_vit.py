"""LV-ViT (*All Tokens Matter: Token Labeling for Training Better Vision Transformers*, Jiang et al., NeurIPS 2021),
with the official parameter names, registered with timm."""

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from timm.layers import to_2tuple, trunc_normal_
from torch import Tensor, nn

from patchslim.errors import UnsupportedModel
from patchslim.models.stem_vit import Stem, StemViT, linear_or_nothing, register

HeadReadout = Literal["class+auxiliary", "class"]
AUXILIARY = 0.5  # how much the auxiliary head counts beside the class head


class ResidualScale(nn.Module):
    """x / λ: LV-ViT divides what its blocks add to the shortcut by `skip_lam`."""

    def __init__(self, skip_lam: float) -> None:
        super().__init__()
        self.skip_lam = skip_lam

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x / self.skip_lam

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"skip_lam={self.skip_lam}"


class ConvStem(Stem):
    """Three convolutions at half the resolution, then one that makes the patches."""

    def __init__(
        self, img_size: tuple[int, int], patch_size: int, in_chans: int, stem_width: int, embed_dim: int
    ) -> None:
        if patch_size % 2:
            raise UnsupportedModel(f"LV-ViT's patches have an even side, not {patch_size}.")
        inner, side = (math.ceil(img_size[0] / 2), math.ceil(img_size[1] / 2)), patch_size // 2
        super().__init__(img_size, (inner[0] // side, inner[1] // side), patch_size, in_chans, embed_dim)
        self.inner_size = inner  # the image's size after conv1
        self.conv1 = nn.Conv2d(in_chans, stem_width, 7, stride=2, padding=3, bias=False)
        self.conv2 = nn.Conv2d(stem_width, stem_width, 3, padding=1, bias=False)
        self.conv3 = nn.Conv2d(stem_width, stem_width, 3, padding=1, bias=False)
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(stem_width) for _ in range(3))
        self.proj = nn.Conv2d(stem_width, embed_dim, side, stride=side)

    def macs(self) -> int:
        """Multiply-accumulates per image."""
        inner = sum(conv.weight.numel() for conv in (self.conv1, self.conv2, self.conv3))
        return math.prod(self.inner_size) * inner + self.num_patches * self.proj.weight.numel()

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, N, d)."""
        x = F.relu(self.bn1(self.conv1(images)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        return self.proj(x).flatten(2).transpose(1, 2)


class LVViT(StemViT):
    """A ViT behind a convolutional stem, with a head on the class token and an auxiliary head on every patch.

    `readout` says which of them give the logits: both, as the official inference has it, or the class head alone; the
    auxiliary head is there in either case, and trains with token labels (`forward_heads`).
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        stem_width: int = 64,
        embed_dim: int = 384,
        depth: int = 16,
        *,
        skip_lam: float = 1.0,
        readout: HeadReadout = "class+auxiliary",
        **of_blocks: Any,  # as StemViT takes them
    ) -> None:
        if readout not in get_args(HeadReadout):
            raise UnsupportedModel(
                f"LV-ViT has no readout {readout!r}; choose one of {', '.join(get_args(HeadReadout))}."
            )
        stem = ConvStem(to_2tuple(img_size), patch_size, in_chans, stem_width, embed_dim)
        super().__init__(stem, num_classes=num_classes, depth=depth, **of_blocks)
        self.readout: HeadReadout = readout
        self.aux_head = linear_or_nothing(embed_dim, num_classes)
        self.pos_embed = nn.Parameter(torch.zeros(1, stem.num_patches + 1, embed_dim))
        if skip_lam != 1:
            for block in self.blocks:
                block.ls1, block.ls2 = ResidualScale(skip_lam), ResidualScale(skip_lam)
        trunc_normal_(self.pos_embed, std=0.02)
        self.init_weights_()

    def forward_heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads, from normed tokens (B, 1 + n, d): logits (B, classes), and of every patch (B, n, classes)."""
        return self.head(x[:, 0]), self.aux_head(x[:, 1:])

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """From normed tokens (B, 1 + n, d) to logits (B, classes), or to the class feature (B, d)."""
        if pre_logits or self.readout == "class":
            return super().forward_head(x, pre_logits)
        own, patches = self.forward_heads(x)
        return own + AUXILIARY * patches.amax(dim=1)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Fresh heads for another number of classes."""
        super().reset_classifier(num_classes, global_pool)
        self.aux_head = linear_or_nothing(self.embed_dim, num_classes).to(self.cls_token.device)


def _variant(width: int, heads: int, depth: int, skip_lam: float, **more: Any) -> dict[str, Any]:
    return {"embed_dim": width, "depth": depth, "num_heads": heads, "skip_lam": skip_lam} | more


VARIANTS = {  # under the official names
    "lvvit_t": _variant(240, 4, 12, 1.0),
    "lvvit_s": _variant(384, 6, 16, 2.0),
    "lvvit_m": _variant(512, 8, 20, 2.0),
    "lvvit_l": _variant(768, 12, 24, 3.0, stem_width=128),
}
CLASS_ONLY = {f"{name}_cls": settings | {"readout": "class"} for name, settings in VARIANTS.items()}
LARGE, WHOLE = ("lvvit_m", "lvvit_l", "lvvit_m_cls", "lvvit_l_cls"), {"crop_pct": 1.0}  # these see the whole picture
register(LVViT, VARIANTS | CLASS_ONLY, **dict.fromkeys(LARGE, WHOLE))
