"""A model of timm's blocks as JSON-able settings, and back: so that a run folder needs no pickle and no name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pydantic import ValidationError
from timm.layers import GluMlp, SwiGLU, get_act_layer
from torch import nn

from patchslim.errors import UnsupportedModel, first_words
from patchslim.files import explain
from patchslim.hosts.alike import difference
from patchslim.hosts.shells import as_host
from patchslim.hosts.spec import TimmSpec
from patchslim.hosts.timm_vit import MLPS, MODELS, NORMS
from patchslim.hosts.weights import cast_, slots_of
from patchslim.models import LVViT, ResidualScale, StemViT, T2TViT

CLASSES: dict[str, Any] = {cls.__name__: cls for cls in (*MODELS, T2TViT, LVViT)}
MLP_CLASSES = {cls.__name__: cls for cls in MLPS}
# timm's own names first; torch's GELU is what VisionTransformer takes when no activation is named.
ACTIVATIONS: dict[str, Any] = {"torch.GELU": nn.GELU} | {
    name: get_act_layer(name) for name in ("gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "tanh")
}


def describe(model: Any) -> dict[str, Any]:
    """The constructor settings of a host, also of a slim model's: read off its parts, proved by building it again."""
    model = as_host(model)
    try:
        kwargs = _kwargs(model)
    except (AttributeError, IndexError, TypeError) as error:  # a part of another kind, that lacks what its like has
        raise UnsupportedModel(
            f"This {type(model).__name__} has parts that its constructor's settings don't describe "
            f"({first_words(error)}), so it can't be saved."
        ) from None
    spec = {"class": type(model).__name__, "kwargs": kwargs, "pretrained_cfg": data_settings(model)}
    prove(model, spec, rebuild, "its constructor's settings don't describe")
    return spec


def prove(model: nn.Module, spec: Mapping[str, Any], build: Callable[[Any], nn.Module], why: str) -> None:
    """Raise UnsupportedModel unless building a host from its description gives the same parts."""
    try:
        with torch.device("meta"):
            found = difference(model, cast_(build(spec), slots_of(model.state_dict())))
    except ValidationError as error:
        found = explain(error)
    if found is not None:
        raise UnsupportedModel(f"This {type(model).__name__} has parts that {why} ({found}), so it can't be saved.")


def rebuild(spec: Mapping[str, Any]) -> nn.Module:
    """A model of these settings with fresh weights (on torch's current default device)."""
    TimmSpec.model_validate(spec)
    cls, kwargs = CLASSES[spec["class"]], dict(spec["kwargs"])
    if not issubclass(cls, StemViT):
        kwargs["norm_layer"] = _layer(NORMS, kwargs["norm_layer"])
        kwargs["act_layer"] = ACTIVATIONS[kwargs["act_layer"]]
        kwargs["mlp_layer"] = _layer(MLP_CLASSES, kwargs["mlp_layer"])
        if kwargs.pop("embed_norm"):
            kwargs["embed_norm_layer"] = kwargs["norm_layer"]
    model: nn.Module = cls(**kwargs)
    set_data_settings_(model, spec["pretrained_cfg"])
    return model


def set_data_settings_(model: Any, settings: Mapping[str, Any]) -> None:
    """Give a model back what timm needs to make its transform."""
    config = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    model.pretrained_cfg = model.default_cfg = config


def data_settings(model: nn.Module) -> dict[str, Any]:
    """What timm needs to make the model's own transform again."""
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    if not isinstance(config, dict):
        config = config.to_dict()
    names = ("architecture", "tag", "input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")
    return listed({name: config[name] for name in names if config.get(name) is not None})


def listed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back: lists where there are tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _kwargs(model: Any) -> dict[str, Any]:
    block, stem = model.blocks[0], model.stem if isinstance(model, StemViT) else model.patch_embed
    hidden = (block.mlp.fc1_g if isinstance(block.mlp, SwiGLU) else block.mlp.fc1).out_features
    own = _stem_kwargs if isinstance(model, StemViT) else _vit_kwargs
    named = {name: getattr(model, name) for name in ("in_chans", "num_classes", "embed_dim")}
    return (
        own(model)
        | named
        | {
            "img_size": list(stem.img_size),
            "depth": len(model.blocks),
            "num_heads": block.attn.num_heads,
            # Half a unit more than the hidden width, so that int(dim · ratio) can't fall one short.
            "mlp_ratio": (hidden + 0.5) / model.embed_dim,
            "qkv_bias": block.attn.qkv.bias is not None,
            "drop_rate": (model.pos_drop if isinstance(model, StemViT) else model.head_drop).p,
            "attn_drop_rate": block.attn.attn_drop.p,
            "drop_path_rate": getattr(model.blocks[-1].drop_path1, "drop_prob", 0.0),
        }
    )


def _vit_kwargs(model: Any) -> dict[str, Any]:
    block, embed = model.blocks[0], model.patch_embed
    gate = {"gate_last": block.mlp.gate_last} if isinstance(block.mlp, GluMlp) else {}
    same = ("global_pool", "no_embed_class", "pool_include_prefix", "dynamic_img_size")
    return {name: getattr(model, name) for name in same} | {
        "patch_size": list(embed.patch_size),
        "qk_norm": _does(block.attn.q_norm),
        "scale_attn_norm": _does(block.attn.norm),
        "scale_mlp_norm": _does(block.mlp.norm),
        "proj_bias": block.attn.proj.bias is not None,
        "init_values": getattr(block.ls1, "init_values", None),
        "class_token": model.has_class_token,
        "pos_embed": "none" if model.pos_embed is None else "learn",
        "reg_tokens": model.num_reg_tokens,
        "pre_norm": _does(model.norm_pre),
        "final_norm": _does(model.norm) or _does(model.fc_norm),
        "fc_norm": _does(model.fc_norm),
        "dynamic_img_pad": embed.dynamic_img_pad,
        "pos_drop_rate": model.pos_drop.p,
        "proj_drop_rate": block.attn.proj_drop.p,
        "norm_layer": {"class": _name(NORMS, block.norm1, "norm"), "eps": block.norm1.eps},
        "act_layer": _name(ACTIVATIONS, block.mlp.act, "activation"),
        "mlp_layer": {"class": type(block.mlp).__name__} | gate,
        "embed_norm": _does(embed.norm),
    }


def _stem_kwargs(model: Any) -> dict[str, Any]:
    stem, scale = model.stem, model.blocks[0].ls1
    if isinstance(model, T2TViT):
        splits = [list(split) for split in stem.splits]
        return {"tokens_type": model.tokens_type, "token_dim": stem.attention1.out_dim, "splits": splits}
    sizes = {"patch_size": stem.patch_size[0], "stem_width": stem.conv1.out_channels}
    skip_lam = scale.skip_lam if isinstance(scale, ResidualScale) else 1.0
    return sizes | {"skip_lam": skip_lam, "readout": model.readout}


def _does(module: nn.Module) -> bool:
    """Whether a module does anything."""
    return not isinstance(module, nn.Identity)


def _name(layers: Mapping[str, Any], module: nn.Module, kind: str) -> str:
    """Under which name a table has the class of a module."""
    for name, layer in layers.items():
        if type(module) is layer:
            return name
    raise UnsupportedModel(f"The {kind} {type(module).__name__} can't be written to a run folder.")


def _layer(layers: Mapping[str, Any], spec: Mapping[str, Any]) -> Any:
    """A class and settings of its own, as timm takes layers."""
    settings = {name: value for name, value in spec.items() if name != "class"}
    return partial(layers[spec["class"]], **settings) if settings else layers[spec["class"]]
