"""T2T-ViT and LV-ViT as JSON-able settings, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.shells import as_host
from patchslim.hosts.timm_spec import data_settings, set_data_settings_
from patchslim.models import LVViT, ResidualScale, StemViT, T2TViT

STEM_MODELS: dict[str, type[StemViT]] = {cls.__name__: cls for cls in (T2TViT, LVViT)}


def describe_stem(model: nn.Module) -> dict[str, Any]:
    """The constructor settings of a host, also of a slim model's: read off its parts, proved by building it again."""
    model = as_host(model)
    spec = {"class": type(model).__name__, "kwargs": _kwargs(model), "pretrained_cfg": data_settings(model)}
    with torch.device("meta"):
        again = rebuild_stem(spec)
    if repr(again) != repr(model) or _kwargs(again) != _kwargs(model) or _shapes(again) != _shapes(model):
        raise UnsupportedModel(
            f"This {type(model).__name__} has parts that its constructor's settings don't describe, "
            "so it can't be saved as a run; make it with timm.create_model."
        )
    return spec


def rebuild_stem(spec: Mapping[str, Any]) -> Any:
    """A model of these settings with fresh weights (on torch's current default device)."""
    model = STEM_MODELS[spec["class"]](**spec["kwargs"])
    set_data_settings_(model, spec["pretrained_cfg"])
    return model


def _kwargs(model: Any) -> dict[str, Any]:
    block = model.blocks[0]
    own = _t2t_kwargs(model) if isinstance(model, T2TViT) else _lv_kwargs(model)
    return own | {
        "img_size": list(model.img_size),
        "in_chans": model.in_chans,
        "num_classes": model.num_classes,
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": block.attn.num_heads,
        # Half a unit more than the hidden width, so that int(dim · ratio) can't fall one short.
        "mlp_ratio": (block.mlp.fc1.out_features + 0.5) / model.embed_dim,
        "qkv_bias": block.attn.qkv.bias is not None,
        "drop_rate": model.pos_drop.p,
        "attn_drop_rate": block.attn.attn_drop.p,
        "drop_path_rate": getattr(model.blocks[-1].drop_path1, "drop_prob", 0.0),
    }


def _t2t_kwargs(model: Any) -> dict[str, Any]:
    stem = model.tokens_to_token
    return {
        "tokens_type": model.tokens_type,
        "token_dim": stem.attention1.out_dim,
        "splits": [list(split) for split in stem.splits],
    }


def _lv_kwargs(model: Any) -> dict[str, Any]:
    scale, stem = model.blocks[0].ls1, model.patch_embed
    return {
        "patch_size": stem.patch_size[0],
        "stem_width": stem.conv1.out_channels,
        "skip_lam": scale.skip_lam if isinstance(scale, ResidualScale) else 1.0,
        "readout": model.readout,
    }


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
