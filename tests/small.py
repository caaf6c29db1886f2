"""Small hosts, images and plans that every test room shares: one host per readout and per feature of a block."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import patchslim as ps
from patchslim.hosts import open_host
from patchslim.models import LVViT, T2TViT
from patchslim.plan import DistanceSpec, PredictorSpec, SlimPlan, build_plan, make_plan
from patchslim.slim.assemble import name_choosers
from patchslim.slim.chooser import DISTANCE, chooser_fingerprint, make_distance
from patchslim.slim.predictor import make_predictor

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
    "lv": {"stem_width": 8, "skip_lam": 2.0},
}
# Made of the same blocks as those above, with a stem of their own: slimmed in tests/hosts/test_stem_vit.py.
STEMS: dict[str, dict[str, Any]] = {
    "t2t": {"token_dim": 8, "splits": ((3, 2, 1),) * 3},
    "t2t transformer": {"token_dim": 8, "splits": ((3, 2, 1),) * 3, "tokens_type": "transformer"},
    "lv class": {"stem_width": 8, "readout": "class"},
}
CLASSES: dict[str, type[nn.Module]] = {"distilled": VisionTransformerDistilled, "t2t": T2TViT, "lv": LVViT}


def make_host(kind: str = "class", seed: int = 0, **settings: Any) -> nn.Module:
    """A small host with weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    cls, wanted = CLASSES.get(kind.split()[0], VisionTransformer), SMALL | (KINDS | STEMS)[kind] | settings
    if cls is T2TViT:
        del wanted["patch_size"]  # its splits make the patches
    model: nn.Module = cls(**wanted)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.15)
    return model.eval()


def make_images(count: int = 3, size: int = 32, seed: int = 1) -> Tensor:
    """Random images (count, 3, size, size)."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def read_by(model: Any, images: Tensor) -> Tensor:
    """What the head reads, by the model's own methods; of LV-ViT, that takes a maximum for every class, the logits."""
    read: Tensor = model.forward_head(model.forward_features(images), pre_logits=not isinstance(model, LVViT))
    return read


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
    if info.reads_patches:
        kept = [sorted({0, *block}) for block in kept]
    return make_plan(info, kept, removed)


def slim_of(kind: str = "class", removed: Any = "drop") -> tuple[nn.Module, Any]:
    """A small host and its slim model."""
    model = make_host(kind)
    return model, ps.apply(model, plan_of(model, PYRAMID, removed))


COUNTS = [13, 9, 6, 3]


def predictors_of(
    model: nn.Module, layers: list[int], kind: Any = "mlp", seed: int = 3, spread: float = 2.0
) -> dict[str, Tensor]:
    """Untrained G for some blocks, under the host's names, far enough from constant to choose differently per image."""
    torch.manual_seed(seed)
    host = open_host(model)
    made = {layer: make_predictor(host.info, kind, 4) for layer in layers}
    for predictor in made.values():
        for parameter in predictor.parameters():
            nn.init.normal_(parameter, std=spread)
    return name_choosers(host, made)


def distances_of(model: nn.Module, layers: list[int], channels: int, seed: int = 4) -> dict[str, Tensor]:
    """Distances of nobody's making for some blocks, under the host's names."""
    torch.manual_seed(seed)
    host = open_host(model)
    return name_choosers(host, {layer: make_distance(host.info.width, channels) for layer in layers}, DISTANCE)


def per_image_plan(
    model: nn.Module,
    select: Any,
    removed: Any = "drop",
    counts: list[int] | None = None,
    *,
    kind: Any = "mlp",
    thresholds: list[float] | None = None,
    drops: list[int] | None = None,
    channels: int | None = None,
    spread: float = 2.0,
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """A plan by which images choose for themselves, and the weights it needs."""
    info = ps.inspect(model)
    counts = list(counts or COUNTS)
    if not info.reads_patches:
        counts[-1] = 0
    fields: dict[str, Any] = {"select": select, "removed": removed, "patches_per_block": counts, "drops": drops or []}
    if select == "matched":
        plan = build_plan(info, **fields)
        if channels is None:
            return plan, {}
        weights = distances_of(model, plan.choosing, channels)
        distance = DistanceSpec(channels=channels, weights=chooser_fingerprint(weights))
        return build_plan(info, **fields, distance=distance), weights
    spec = PredictorSpec(
        kind=kind,
        hidden=4,
        mode="top-k" if thresholds is None else "threshold",
        thresholds=thresholds,
        average_macs=None if thresholds is None else 0,
        weights="",
    )
    layers = build_plan(info, **fields, predictor=spec).choosing
    weights = predictors_of(model, layers, kind, spread=spread)
    spec = spec.model_copy(update={"weights": chooser_fingerprint(weights)})
    return build_plan(info, **fields, predictor=spec), weights


def merge_plan(model: nn.Module, kept: list[list[int]] | None = None) -> SlimPlan:
    """Fixed groups: every removed patch joins the kept one nearest by number, each fifth one is dropped."""
    base = plan_of(model, kept or PYRAMID)
    alive, into = set(range(base.host.patches)), [-1] * base.host.patches
    for block in base.kept:
        for patch in alive - set(block):
            if block and patch % 5:
                into[patch] = min(block, key=lambda other: (abs(other - patch), other))
        alive = set(block)
    return build_plan(ps.inspect(model), removed="merge", kept=base.kept, into=into)


def own_plan(model: nn.Module, kept: list[list[int]] | None = None, drops: list[int] | None = None) -> SlimPlan:
    """Static merge in which every image groups patches for itself."""
    base = plan_of(model, kept or PYRAMID)
    return build_plan(ps.inspect(model), removed="merge", kept=base.kept, drops=drops or [])


WAYS = ("drop", "carry", "static merge", "fixed groups", "matched", "predicted", "threshold")


def plan_for(model: nn.Module, way: str) -> tuple[SlimPlan, dict[str, Tensor]]:
    """A plan of each way of slimming, and the weights it needs."""
    if way in ("drop", "carry"):
        return plan_of(model, PYRAMID, way), {}
    if way == "static merge":
        return own_plan(model), {}
    if way == "fixed groups":
        return merge_plan(model), {}
    if way == "threshold":
        return per_image_plan(model, "predicted", thresholds=[-3.0, -2.0, -1.0, 0.0])
    return per_image_plan(model, way, "merge")
