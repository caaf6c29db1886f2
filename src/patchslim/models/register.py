"""A table of variants becomes timm models: `timm.create_model(name, **settings)`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

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
        model: nn.Module = build_model_with_cfg(cls, name, pretrained, **dict(usual) | settings)
        return model

    make.__name__ = make.__qualname__ = name
    make.__module__ = cls.__module__
    make.__doc__ = f"{cls.__name__} with {', '.join(f'{key}={value!r}' for key, value in usual.items())}."
    return make
