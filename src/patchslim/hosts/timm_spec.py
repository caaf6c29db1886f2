"""A timm VisionTransformer as JSON-able settings, and back: so that a run folder needs no pickle and no name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers import GluMlp, Mlp, PatchEmbed, SwiGLU, get_act_layer
from timm.layers import norm as timm_norms
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.shells import as_host

MODELS = {cls.__name__: cls for cls in (VisionTransformer, VisionTransformerDistilled)}
MLPS = {cls.__name__: cls for cls in (Mlp, GluMlp, SwiGLU)}
NORM_NAMES = ("LayerNorm", "LayerNormFp32", "RmsNorm", "RmsNormFp32", "SimpleNorm", "SimpleNormFp32")
NORMS: dict[str, Any] = {"torch.LayerNorm": nn.LayerNorm} | {n: getattr(timm_norms, n) for n in NORM_NAMES}
# timm's own names first; torch's GELU is what VisionTransformer takes when no activation is named.
ACTIVATIONS: dict[str, Any] = {"torch.GELU": nn.GELU} | {
    name: get_act_layer(name) for name in ("gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "tanh")
}


def describe(model: Any) -> dict[str, Any]:
    """The constructor settings of a host, also of a slim model's: read off its parts, proved by building it again."""
    model = as_host(model)
    spec = {"class": type(model).__name__, "kwargs": _kwargs(model), "pretrained_cfg": data_settings(model)}
    with torch.device("meta"):
        again = rebuild(spec)
    if repr(again) != repr(model) or _plain(again) != _plain(model):
        raise UnsupportedModel(
            f"This {type(model).__name__} has parts that its constructor's settings don't describe, "
            "so it can't be saved as a run; make it with timm.create_model or VisionTransformer(...)."
        )
    return spec


def rebuild(spec: Mapping[str, Any]) -> nn.Module:
    """A model of these settings with fresh weights (on torch's current default device)."""
    kwargs = dict(spec["kwargs"])
    kwargs["norm_layer"] = _norm_from(kwargs["norm_layer"])
    kwargs["act_layer"] = ACTIVATIONS[kwargs["act_layer"]]
    kwargs["mlp_layer"] = _mlp_from(kwargs["mlp_layer"])
    if kwargs.pop("embed_norm"):
        kwargs["embed_norm_layer"] = kwargs["norm_layer"]
    model: nn.Module = MODELS[spec["class"]](**kwargs)
    set_data_settings_(model, spec["pretrained_cfg"])
    return model


def set_data_settings_(model: Any, settings: Mapping[str, Any]) -> None:
    """Give a model back what timm needs to make its transform."""
    config = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    model.pretrained_cfg = model.default_cfg = config


def _kwargs(model: Any) -> dict[str, Any]:
    block, embed = model.blocks[0], model.patch_embed
    norms = [module for module in (model.norm, model.fc_norm) if not isinstance(module, nn.Identity)]
    return {
        "img_size": list(embed.img_size),
        "patch_size": list(embed.patch_size),
        "in_chans": model.in_chans,
        "num_classes": model.num_classes,
        "global_pool": model.global_pool,
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": block.attn.num_heads,
        # Half a unit more than the hidden width, so that timm's int(dim · ratio) can't fall one short.
        "mlp_ratio": (_mlp_width(block.mlp) + 0.5) / model.embed_dim,
        "qkv_bias": block.attn.qkv.bias is not None,
        "qk_norm": not isinstance(block.attn.q_norm, nn.Identity),
        "scale_attn_norm": not isinstance(block.attn.norm, nn.Identity),
        "scale_mlp_norm": not isinstance(block.mlp.norm, nn.Identity),
        "proj_bias": block.attn.proj.bias is not None,
        "init_values": getattr(block.ls1, "init_values", None),
        "class_token": model.has_class_token,
        "pos_embed": "none" if model.pos_embed is None else "learn",
        "no_embed_class": model.no_embed_class,
        "reg_tokens": model.num_reg_tokens,
        "pre_norm": not isinstance(model.norm_pre, nn.Identity),
        "final_norm": bool(norms),
        "fc_norm": not isinstance(model.fc_norm, nn.Identity),
        "pool_include_prefix": model.pool_include_prefix,
        "dynamic_img_size": model.dynamic_img_size,
        "dynamic_img_pad": embed.dynamic_img_pad,
        "drop_rate": model.head_drop.p,
        "pos_drop_rate": model.pos_drop.p,
        "proj_drop_rate": block.attn.proj_drop.p,
        "attn_drop_rate": block.attn.attn_drop.p,
        "drop_path_rate": getattr(model.blocks[-1].drop_path1, "drop_prob", 0.0),
        "norm_layer": _norm_spec(block.norm1),
        "act_layer": _activation_name(block.mlp.act),
        "mlp_layer": _mlp_spec(block.mlp),
        "embed_norm": not isinstance(embed.norm, nn.Identity),
    }


def data_settings(model: nn.Module) -> dict[str, Any]:
    """What timm needs to make the model's own transform again."""
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    if not isinstance(config, dict):
        config = config.to_dict()
    names = ("architecture", "tag", "input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")
    return {name: _listed(config[name]) for name in names if config.get(name) is not None}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _plain(model: nn.Module) -> dict[str, Any]:
    """Settings that repr does not show."""
    public = {k: v for k, v in vars(model).items() if not k.startswith("_") and isinstance(v, (bool, int, str))}
    embed: PatchEmbed = model.patch_embed
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    skipped = ("training", "grad_checkpointing", "weight_init_mode", "fix_init", "distilled_training")
    return {k: v for k, v in public.items() if k not in skipped} | shapes | {"size": embed.img_size}


def _mlp_width(mlp: Any) -> int:
    first: nn.Linear = mlp.fc1_g if isinstance(mlp, SwiGLU) else mlp.fc1
    return first.out_features


def _mlp_spec(mlp: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"class": type(mlp).__name__}
    if isinstance(mlp, GluMlp):
        spec["gate_last"] = mlp.gate_last
    return spec


def _mlp_from(spec: Mapping[str, Any]) -> Any:
    settings = {name: value for name, value in spec.items() if name != "class"}
    layer = MLPS[spec["class"]]
    return partial(layer, **settings) if settings else layer


def _activation_name(activation: nn.Module) -> str:
    for name, layer in ACTIVATIONS.items():
        if type(activation) is layer:
            return name
    raise UnsupportedModel(f"The activation {type(activation).__name__} can't be written to a run folder.")


def _norm_spec(norm: Any) -> dict[str, Any]:
    name = "torch.LayerNorm" if type(norm) is nn.LayerNorm else type(norm).__name__
    if name not in NORMS:
        raise UnsupportedModel(f"The norm {name} can't be written to a run folder.")
    return {"class": name, "eps": norm.eps}


def _norm_from(spec: Mapping[str, Any]) -> Any:
    return partial(NORMS[spec["class"]], eps=spec["eps"])
