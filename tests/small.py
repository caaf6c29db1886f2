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
from patchslim.plan import SlimPlan, make_plan, order_of, static_plan
from patchslim.search.threshold import with_thresholds
from patchslim.slimmed.assemble import fingerprint, own_weights
from patchslim.steps import Step
from patchslim.steps.cover import Cover
from patchslim.steps.keep import Keep
from patchslim.steps.merge import Merge, make_distance
from patchslim.steps.predict import Predict
from patchslim.steps.selector import make_selector
from patchslim.steps.slice import Slice

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
COUNTS = [13, 9, 6, 3]
CHANNELS = 4


def lists_for(model: nn.Module, kept: list[list[int]]) -> list[list[int]]:
    """Patch lists with the one patch that pooled readouts need."""
    return [sorted({0, *block}) for block in kept] if ps.inspect(model).reads_patches else kept


def plan_of(model: nn.Module, kept: list[list[int]], step: Any = "slice") -> SlimPlan:
    """A static plan from patch lists."""
    return static_plan(ps.inspect(model), lists_for(model, kept), step)


def slim_of(kind: str = "class", step: Any = "slice") -> tuple[nn.Module, nn.Module]:
    """A small host and its slim model."""
    model = make_host(kind)
    return model, ps.apply(model, plan_of(model, PYRAMID, step))


def with_parts(model: nn.Module, plan: SlimPlan, parts: dict[int, nn.Module]) -> tuple[SlimPlan, dict[str, Tensor]]:
    """The plan with the fingerprint of what its steps own, and these weights."""
    weights = own_weights(open_host(model), plan, parts)
    return plan.with_(weights=fingerprint(weights)), weights


def with_distances(model: nn.Module, plan: SlimPlan, seed: int = 4) -> tuple[SlimPlan, dict[str, Tensor]]:
    """The plan, and for each of its blocks that choose a distance of nobody's making."""
    torch.manual_seed(seed)
    chosen = [layer for layer in plan.choosing if plan.steps[layer - 1].kind in ("cover", "merge")]
    return with_parts(model, plan, {layer: make_distance(24, CHANNELS) for layer in chosen})


def steps_for(model: nn.Module, make: Any, counts: list[int] | None = None) -> list[Step]:
    """Steps for counts: `make(count, layer)` where some patches stay and others go."""
    info, entering, steps = ps.inspect(model), ps.inspect(model).patches, list[Step]()
    counts = list(counts or COUNTS)
    if not info.reads_patches:
        counts[-1] = 0
    for layer, count in enumerate(counts, start=1):
        steps.append(Keep() if count == entering else Slice(n=0) if count == 0 else make(count, layer))
        entering = count
    return steps


def merging(
    model: nn.Module, counts: list[int] | None = None, drops: tuple[int, ...] = (), seed: int = 4
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """Each image merges its own patches, by distances of nobody's making."""
    plan = make_plan(
        ps.inspect(model),
        steps_for(model, lambda n, layer: Merge(n=n, channels=CHANNELS, drop=layer in drops), counts),
    )
    return with_distances(model, plan, seed)


def covering(
    model: nn.Module, kept: list[list[int]] | None = None, drops: tuple[int, ...] = (), seed: int = 4
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """Static patches that the others join, by distances of nobody's making; where only the prefix is read, the last
    block computes none."""
    lists = lists_for(model, kept or PYRAMID)

    def step(n: int, layer: int) -> Step:
        return Slice(n=n) if layer in drops else Cover(n=n, channels=CHANNELS)

    steps = steps_for(model, step, [len(block) for block in lists])
    plan = make_plan(ps.inspect(model), steps, order_of(lists, ps.inspect(model).patches))
    return with_distances(model, plan, seed)


def predicting(
    model: nn.Module,
    merge: bool = False,
    counts: list[int] | None = None,
    *,
    selector: Any = "mlp",
    thresholds: list[float] | None = None,
    drops: tuple[int, ...] = (),
    spread: float = 2.0,
    seed: int = 3,
) -> tuple[SlimPlan, dict[str, Tensor]]:
    """Each image's own patches by untrained G, far enough from constant to choose differently per image."""
    info = ps.inspect(model)
    hidden = 0 if selector == "pool" else 4

    def step(n: int, layer: int) -> Step:
        return Predict(n=n, merge=merge and layer not in drops, selector=selector, hidden=hidden)

    plan = make_plan(info, steps_for(model, step, counts))
    if thresholds is not None:
        plan = with_thresholds(plan, selector, hidden)
        steps = [
            own.model_copy(update={"above": above}) if getattr(own, "above", None) is not None else own
            for own, above in zip(plan.steps, thresholds, strict=True)
        ]
        plan = plan.with_(steps=steps)
    torch.manual_seed(seed)
    layers = [layer for layer, own in enumerate(plan.steps, start=1) if own.kind in ("predict", "threshold")]
    parts: dict[int, nn.Module] = {layer: make_selector(info, selector, hidden) for layer in layers}
    for part in parts.values():
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=spread)
        part.requires_grad_(False)
    return with_parts(model, plan, parts)


WAYS = ("drop", "carry", "cover", "merge", "merge dropping", "predict", "predict merging", "threshold")
THRESHOLDS = [-3.0, -2.0, -1.0, 0.0]


def plan_for(model: nn.Module, way: str) -> tuple[SlimPlan, dict[str, Tensor]]:
    """A plan of each way of slimming, and the weights it needs."""
    if way in ("drop", "carry"):
        return plan_of(model, PYRAMID, "slice" if way == "drop" else "carry"), {}
    if way == "cover":
        return covering(model)
    if way == "threshold":
        return predicting(model, thresholds=THRESHOLDS)
    if way.startswith("merge"):
        return merging(model, drops=(2,) if "dropping" in way else ())
    return predicting(model, merge="merging" in way, spread=0.5)
