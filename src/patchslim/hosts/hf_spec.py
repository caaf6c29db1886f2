"""A transformers model as JSON-able settings, and back: its own config."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.hf_data import hf_data_settings
from patchslim.hosts.hf_parts import KINDS, LIBRARY, tower_of
from patchslim.hosts.shells import as_host
from patchslim.hosts.timm_spec import set_data_settings_


def library() -> Any:
    """The package transformers; UnsupportedModel when it is not installed."""
    try:
        return import_module(LIBRARY)
    except ImportError:
        raise UnsupportedModel(
            "Models of Hugging Face need the package transformers; install it with pip install 'patchslim[hf]'."
        ) from None


def describe_hf(model: Any) -> dict[str, Any]:
    """The class and config of a host, also of a slim model's, proved by building it again."""
    model = as_host(model)
    settings = hf_data_settings(model)
    spec = {
        "library": LIBRARY,
        "version": version(LIBRARY),
        "class": type(model).__name__,
        "config": model.config.to_dict(),
        "attention": "eager" if tower_of(model).config._attn_implementation == "eager" else "sdpa",
        "kwargs": {"add_pooling_layer": False} if hasattr(model, "pooler") and model.pooler is None else {},
        "pretrained_cfg": {name: list(own) if isinstance(own, tuple) else own for name, own in settings.items()},
    }
    with torch.device("meta"):
        again = rebuild_hf(spec)
    if _shapes(again) != _shapes(model):
        raise UnsupportedModel(
            f"This {type(model).__name__} has parts that its config does not describe, so it can't be saved as a run."
        )
    return spec


def rebuild_hf(spec: Mapping[str, Any]) -> Any:
    """A model of these settings with fresh weights (on torch's current default device)."""
    if spec["class"] not in KINDS:
        raise KeyError(spec["class"])
    cls = getattr(library(), spec["class"])
    model = cls(cls.config_class.from_dict(spec["config"]), **spec["kwargs"])
    model.set_attn_implementation(spec["attention"])
    set_data_settings_(model, spec["pretrained_cfg"])
    return model


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
