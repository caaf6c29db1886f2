"""From a model to its host family. Another family is another file beside `timm_vit.py` and its like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from patchslim.errors import RunError, UnsupportedModel
from patchslim.hosts.base import Host, HostInfo
from patchslim.hosts.hf_parts import LIBRARY, hf_class
from patchslim.hosts.hf_spec import rebuild_hf
from patchslim.hosts.hf_vit import HFViT
from patchslim.hosts.stem_spec import STEM_MODELS, rebuild_stem
from patchslim.hosts.stem_vit import StemHost
from patchslim.hosts.timm_spec import rebuild
from patchslim.hosts.timm_vit import TimmViT
from patchslim.models import StemViT


def open_host(model: nn.Module) -> Host:
    """The model as a host; UnsupportedModel says what stands in the way."""
    return _family(model)(model)


def open_slim(model: nn.Module, info: HostInfo) -> Host:
    """A slim model seen as the host it was made from: the same embedding and head around other blocks."""
    return _family(model).around(model, info)


def classifiers_of(model: nn.Module) -> Sequence[nn.Module]:
    """The classifiers of a host or a slim model, also where other parts have been replaced: they are not checked."""
    return _family(model).classifiers_of(model)


def _family(model: nn.Module) -> type[HFViT] | type[StemHost] | type[TimmViT]:
    if hf_class(model) is not None:
        return HFViT
    return StemHost if isinstance(model, StemViT) else TimmViT


def inspect(model: nn.Module) -> HostInfo:
    """Depth, width, heads, prefix tokens, patches and readout; UnsupportedModel says why not."""
    return open_host(model).info


def rebuild_host(spec: Mapping[str, Any]) -> nn.Module:
    """The host of a run folder, with fresh weights."""
    try:
        if spec.get("library") == LIBRARY:
            return rebuild_hf(spec)  # type: ignore[no-any-return]
        return rebuild_stem(spec) if spec["class"] in STEM_MODELS else rebuild(spec)
    except UnsupportedModel:
        raise
    except Exception as error:  # a damaged description can make timm fail in any way
        raise RunError(
            f"The run's config.json does not describe a model this patchslim can build: {error!r}."
        ) from None
