"""The small ViT that comes with patchslim: handwritten digits, 32×32 pixels, 64 patches. It is registered with timm:
`timm.create_model("digits_vit", pretrained=True)`. `python -m benchmarks train digits` made its weights."""

from pathlib import Path
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import nn

DIGITS_WEIGHTS = Path(__file__).parent.parent / "assets" / "digits_vit.safetensors"

default_cfgs = generate_default_cfgs(
    {
        "digits_vit.digits": {
            "file": str(DIGITS_WEIGHTS),
            "num_classes": 10,
            "input_size": (3, 32, 32),
            "fixed_input_size": True,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        }
    }
)


@register_model  # type: ignore[untyped-decorator]
def digits_vit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A ViT of 6 blocks, width 96, for ten digits in 32×32 pixels."""
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6, "num_heads": 3, "num_classes": 10}
    return build_model_with_cfg(VisionTransformer, "digits_vit", pretrained, **sizes | kwargs)
