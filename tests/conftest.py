"""Small hosts that every test room shares: one per readout and per feature of a block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

SMALL: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 4,
    "num_heads": 3,
    "num_classes": 7,
    "mlp_ratio": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "class": {},
    "registers": {"reg_tokens": 4, "no_embed_class": True, "init_values": 0.3},
    "distilled": {},
    "mean": {"global_pool": "avg", "class_token": False},
    "mean with prefix": {"global_pool": "avg", "reg_tokens": 2, "pool_include_prefix": True, "fc_norm": False},
    "attention pool": {"global_pool": "map", "class_token": False},
    "pre-norm qk-norm": {"pre_norm": True, "qk_norm": True, "qkv_bias": False, "scale_attn_norm": True},
}


def make_host(kind: str = "class", seed: int = 0, **settings: Any) -> nn.Module:
    """A small host with weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    cls = VisionTransformerDistilled if kind == "distilled" else VisionTransformer
    model: nn.Module = cls(**(SMALL | KINDS[kind] | settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.15)
    return model.eval()


def make_images(count: int = 3, size: int = 32, seed: int = 1) -> Tensor:
    """Random images (count, 3, size, size)."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def relative(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    return float(((a - b).norm() / b.norm()).detach())


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of small host in turn."""
    return str(request.param)
