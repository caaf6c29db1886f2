"""Small hosts, images and plans that every test room shares: one host per readout and per feature of a block."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import patchslim as ps
from patchslim.plan import SlimPlan, make_plan

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
    "mean with prefix": {
        "global_pool": "avg",
        "reg_tokens": 2,
        "pool_include_prefix": True,
        "fc_norm": False,
    },
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


@st.composite
def nested(draw: st.DrawFn, patches: int = 16, depth: int = 4) -> list[list[int]]:
    """Nested patch lists for a small host."""
    order = draw(st.permutations(range(patches)))
    counts = sorted(draw(st.lists(st.integers(0, patches), min_size=depth, max_size=depth)), reverse=True)
    return [order[:count] for count in counts]


PYRAMID = [[1, 3, 4, 7, 8, 11, 14], [3, 7, 8, 14], [7, 8, 14], [7]]


def plan_of(model: nn.Module, kept: list[list[int]], removed: Any = "drop") -> SlimPlan:
    """A plan from patch lists, with the one patch that pooled readouts need."""
    info = ps.inspect(model)
    if info.readout in ("mean", "attention-pool"):
        kept = [sorted({0, *block}) for block in kept]
    return make_plan(info, kept, removed)


def slim_of(kind: str = "class", removed: Any = "drop") -> tuple[nn.Module, Any]:
    """A small host and its slim model."""
    model = make_host(kind)
    return model, ps.apply(model, plan_of(model, PYRAMID, removed))
