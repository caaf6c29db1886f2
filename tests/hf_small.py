"""Small transformers models of every supported kind, made anew: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "image_size": 32,
    "patch_size": 8,
}
WIDE: dict[str, Any] = SMALL | {"intermediate_size": 48}
DINO: dict[str, Any] = SMALL | {"mlp_ratio": 2, "layerscale_value": 0.3}
LABELS: dict[str, Any] = {"id2label": {number: f"digit {number}" for number in range(10)}}


def _vision(config: Any, vision: dict[str, Any]) -> Any:
    return config(vision_config=vision, **LABELS)


MADE: dict[str, Any] = {
    "ViTModel": lambda: hf.ViTModel(hf.ViTConfig(**WIDE)),
    "ViTModel without pooler": lambda: hf.ViTModel(hf.ViTConfig(**WIDE, qkv_bias=False), add_pooling_layer=False),
    "ViTForImageClassification": lambda: hf.ViTForImageClassification(hf.ViTConfig(**WIDE, **LABELS)),
    "DeiTModel": lambda: hf.DeiTModel(hf.DeiTConfig(**WIDE)),
    "DeiTForImageClassification": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**WIDE, **LABELS)),
    "DeiTForImageClassificationWithTeacher": lambda: hf.DeiTForImageClassificationWithTeacher(
        hf.DeiTConfig(**WIDE, **LABELS)
    ),
    "Dinov2Model": lambda: hf.Dinov2Model(hf.Dinov2Config(**DINO)),
    "Dinov2ForImageClassification": lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**DINO, **LABELS)),
    "Dinov2ForImageClassification SwiGLU": lambda: hf.Dinov2ForImageClassification(
        hf.Dinov2Config(**DINO, **LABELS, use_swiglu_ffn=True)
    ),
    "Dinov2WithRegistersModel": lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**DINO)),
    "Dinov2WithRegistersForImageClassification": lambda: hf.Dinov2WithRegistersForImageClassification(
        hf.Dinov2WithRegistersConfig(**DINO, **LABELS, num_register_tokens=3)
    ),
    "CLIPVisionModel": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**WIDE)),
    "CLIPVisionModelWithProjection": lambda: hf.CLIPVisionModelWithProjection(
        hf.CLIPVisionConfig(**WIDE, projection_dim=10)
    ),
    "CLIPForImageClassification": lambda: hf.CLIPForImageClassification(_vision(hf.CLIPConfig, WIDE)),
    "SiglipVisionModel": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**WIDE)),
    "SiglipForImageClassification": lambda: hf.SiglipForImageClassification(_vision(hf.SiglipConfig, WIDE)),
}
# One of each way of reading and of each kind of block.
FEW = (
    "ViTForImageClassification",
    "DeiTForImageClassificationWithTeacher",
    "Dinov2WithRegistersForImageClassification",
    "CLIPVisionModelWithProjection",
    "SiglipVisionModel",
)


def make_hf(kind: str = "ViTForImageClassification", attention: str = "sdpa", seed: int = 0) -> Any:
    """A model with weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    model: nn.Module = MADE[kind]()
    model.set_attn_implementation(attention)  # type: ignore[operator]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.15)
    return model.eval()
