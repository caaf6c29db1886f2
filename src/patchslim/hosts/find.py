"""From a model to its host family. Another family is another file beside `timm_vit.py` and `stem_vit.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from patchslim.errors import RunError
from patchslim.hosts.base import Host, HostInfo
from patchslim.hosts.stem_spec import STEM_MODELS, rebuild_stem
from patchslim.hosts.stem_vit import StemHost
from patchslim.hosts.timm_spec import rebuild
from patchslim.hosts.timm_vit import TimmViT
from patchslim.models import StemViT


def open_host(model: nn.Module) -> Host:
    """The model as a host; UnsupportedModel says what stands in the way."""
    return StemHost(model) if isinstance(model, StemViT) else TimmViT(model)


def open_slim(model: nn.Module, info: HostInfo) -> Host:
    """A slim model seen as the host it was made from: the same embedding and head around other blocks."""
    return (StemHost if isinstance(model, StemViT) else TimmViT).around(model, info)


def inspect(model: nn.Module) -> HostInfo:
    """Depth, width, heads, prefix tokens, patches and readout; UnsupportedModel says why not."""
    return open_host(model).info


def rebuild_host(spec: Mapping[str, Any]) -> nn.Module:
    """The host of a run folder, with fresh weights."""
    try:
        return rebuild_stem(spec) if spec["class"] in STEM_MODELS else rebuild(spec)
    except Exception as error:  # a damaged description can make timm fail in any way
        raise RunError(
            f"The run's config.json does not describe a model this patchslim can build: {error!r}."
        ) from None
