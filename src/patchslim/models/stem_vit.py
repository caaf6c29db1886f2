"""What T2T-ViT and LV-ViT have in common: a stem that makes the patches, then a plain pre-norm ViT of timm's blocks. A
table of variants becomes timm models: `timm.create_model(name, **settings)`."""

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import trunc_normal_
from timm.models import build_model_with_cfg, checkpoint_seq, generate_default_cfgs, register_model
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from patchslim.errors import DataError, UnsupportedModel

IMAGENET: dict[str, Any] = {
    "input_size": (3, 224, 224),
    "num_classes": 1000,
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "classifier": "head",
}
REGISTERED: dict[str, dict[str, Any]] = {}  # all models registered here, and their settings


class Stem(nn.Module):
    """What makes patches from an image: (B, C, H, W) → (B, N, d), patches row by row."""

    def __init__(
        self, img_size: tuple[int, int], grid: tuple[int, int], patch: int, in_chans: int, embed_dim: int
    ) -> None:
        """Raises UnsupportedModel unless there is one patch for every whole `patch` pixels, as positions expect."""
        super().__init__()
        height, width = img_size
        if grid != (height // patch, width // patch) or min(grid) < 1:
            raise UnsupportedModel(
                f"Images of {height}×{width} pixels don't fit this model's patches; "
                f"make both sides multiples of {patch}."
            )
        self.img_size, self.patch_size, self.grid_size = img_size, (patch, patch), grid
        self.num_patches, self.in_chans, self.embed_dim = math.prod(grid), in_chans, embed_dim

    def macs(self) -> int:
        """Multiply-accumulates per image."""
        raise NotImplementedError


class StemViT(nn.Module):
    """Stem, class token, positions, blocks, norm, linear head. Subclasses add `pos_embed` (1, 1 + N, d)."""

    stem_name = "patch_embed"  # as official checkpoints call it
    num_prefix_tokens = 1
    pos_embed: Tensor

    def __init__(
        self,
        stem: Stem,
        *,
        num_classes: int,
        depth: int,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.in_chans, self.num_classes, embed_dim = stem.in_chans, num_classes, stem.embed_dim
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.grad_checkpointing = False
        self.add_module(self.stem_name, stem)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_drop = nn.Dropout(drop_rate)
        rates = torch.linspace(0, drop_path_rate, depth, device="cpu").tolist()  # stochastic depth grows with depth
        drops = {"proj_drop": drop_rate, "attn_drop": attn_drop_rate}
        own = {"qkv_bias": qkv_bias, "norm_layer": nn.LayerNorm} | drops
        self.blocks = nn.Sequential(*(Block(embed_dim, num_heads, mlp_ratio, drop_path=rate, **own) for rate in rates))
        self.norm = nn.LayerNorm(embed_dim)
        self.head = linear_or_nothing(embed_dim, num_classes)

    def init_weights_(self) -> None:
        """Fresh weights as both papers have them."""
        if self.cls_token.is_meta:
            return  # there is nothing to fill, and trying takes most of the time
        trunc_normal_(self.cls_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    @property
    def stem(self) -> Stem:
        """What makes the patches, under its official name a child of the model."""
        return getattr(self, self.stem_name)

    @property
    def img_size(self) -> tuple[int, int]:
        """(H, W)."""
        return self.stem.img_size

    def fixed(self) -> list[Tensor]:
        """Tables that belong to the weights but are never learnt; the papers count them as parameters."""
        return []

    def embed(self, images: Tensor) -> Tensor:
        """Z_0: (B, C, H, W) → (B, 1 + N, d)."""
        (height, width), size = self.img_size, images.shape[2:]
        if tuple(size) != (height, width):
            raise DataError(f"This model takes images of {height}×{width} pixels and got {size[0]}×{size[1]}.")
        x = self.stem(images)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        return self.pos_drop(x + self.pos_embed)

    def forward_features(self, images: Tensor) -> Tensor:
        """All tokens after the last norm: (B, C, H, W) → (B, 1 + N, d)."""
        x = self.embed(images)
        x = checkpoint_seq(self.blocks, x) if self.grad_checkpointing and self.training else self.blocks(x)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """From normed tokens (B, n, d) to logits (B, classes), or to the class feature (B, d)."""
        return x[:, 0] if pre_logits else self.head(x[:, 0])

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, classes)."""
        return self.forward_head(self.forward_features(images))

    def get_classifier(self) -> nn.Module:
        """The class head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh head for another number of classes."""
        self.num_classes, device = num_classes, self.cls_token.device
        self.head = linear_or_nothing(self.embed_dim, num_classes).to(device)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Spend time to save memory in training."""
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay leaves alone."""
        return {"pos_embed", "cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's way to tell which layer a parameter belongs to."""
        stem = rf"^cls_token|pos_embed|{self.stem_name}"
        return {"stem": stem, "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}


def linear_or_nothing(width: int, classes: int) -> nn.Module:
    """A classifier; with 0 classes features pass as they are."""
    return nn.Linear(width, classes) if classes > 0 else nn.Identity()


def linear_macs(module: nn.Module) -> int:
    """Multiply-accumulates per token: the weights of its linear layers, also where they are quantised or adapted."""
    layers: list[Any] = [
        part for part in module.modules() if hasattr(part, "in_features") and hasattr(part, "out_features")
    ]
    whole = {id(part) for part in layers if any(below in layers for below in part.modules() if below is not part)}
    return sum(part.in_features * part.out_features for part in layers if id(part) not in whole)


def register(cls: type[nn.Module], variants: Mapping[str, Mapping[str, Any]], **prepared: Mapping[str, Any]) -> None:
    """Register a class under some names, each with its settings; `prepared` are changes to how images are prepared."""
    module: Any = sys.modules[cls.__module__]
    configs = {name: IMAGENET | dict(prepared.get(name, {})) for name in variants}
    module.default_cfgs = generate_default_cfgs(configs)  # where timm looks for them
    for name, settings in variants.items():
        entry = _entry(cls, name, settings)
        setattr(module, name, entry)
        register_model(entry)
        REGISTERED[name] = dict(settings)


def _entry(cls: type[nn.Module], name: str, usual: Mapping[str, Any]) -> Any:
    def make(pretrained: bool = False, **settings: Any) -> nn.Module:
        return build_model_with_cfg(cls, name, pretrained, **dict(usual) | settings)

    make.__name__ = make.__qualname__ = name
    make.__module__ = cls.__module__
    make.__doc__ = f"{cls.__name__} with {', '.join(f'{key}={value!r}' for key, value in usual.items())}."
    return make
