"""Host families: `open_host` finds the one a model belongs to, or says why there is none. Another family is another
file beside `timm_vit.py` and its like."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from torch import nn

import patchslim.hosts.digits_vit  # noqa: F401  (registers itself with timm)
from patchslim.errors import RunError, UnsupportedModel, first_words
from patchslim.files import explain
from patchslim.hosts.base import BlockShape, Host, HostInfo
from patchslim.hosts.block import Incoming
from patchslim.hosts.hf_data import hf_data_settings
from patchslim.hosts.hf_open import describe_hf, open_hf, rebuild_hf
from patchslim.hosts.hf_parts import LIBRARY, hf_class
from patchslim.hosts.hf_vit import HFViT, answer_of
from patchslim.hosts.parts import copied, in_eval, like_weights, unwrapped
from patchslim.hosts.projections import split_qkv_
from patchslim.hosts.shells import as_host, is_slim_block, shell, whole
from patchslim.hosts.spec import HFSpec, TimmSpec
from patchslim.hosts.stem_vit import StemHost
from patchslim.hosts.timm_embed import with_matmul_embed
from patchslim.hosts.timm_spec import describe, rebuild
from patchslim.hosts.timm_vit import TimmViT
from patchslim.models import StemViT

__all__ = [
    "BlockShape",
    "Host",
    "HostInfo",
    "Incoming",
    "answer_of",
    "as_host",
    "classifiers_of",
    "copied",
    "hf_data_settings",
    "in_eval",
    "inspect",
    "like_weights",
    "open_hf",
    "open_host",
    "open_slim",
    "rebuild_host",
    "shell",
    "spec_of",
    "split_qkv_",
    "unwrapped",
    "whole",
    "with_matmul_embed",
]


def open_host(model: nn.Module) -> Host:
    """The model as a host; UnsupportedModel says what stands in the way."""
    model = unwrapped(model)
    if _is_slim(model):
        raise UnsupportedModel("This model is slim already; take the host it was made from.")
    family = _family(model)
    family.check(model)
    return family(model)


def open_slim(model: nn.Module, info: HostInfo | None = None) -> Host:
    """A slim model seen as the host it was made from, around other blocks: nothing is checked, `info` is read off it
    where it is not given."""
    model = unwrapped(model)
    return _family(model)(model, info)


def classifiers_of(model: nn.Module) -> Sequence[nn.Module]:
    """The classifiers of a host or a slim model, also where other parts have been replaced: they are not checked."""
    return _family(model).classifiers_of(model)


def _family(model: nn.Module) -> type[HFViT] | type[StemHost] | type[TimmViT]:
    if hf_class(model) is not None:
        return HFViT
    return StemHost if isinstance(model, StemViT) else TimmViT


def inspect(model: nn.Module) -> HostInfo:
    """Depth, width, heads, patches and readout of a host, or of a slim model's host; UnsupportedModel says why not."""
    return _seen(model).info


def spec_of(model: nn.Module) -> Mapping[str, Any]:
    """JSON-able settings of a host, or of a slim model's host, from which `rebuild_host` makes it again."""
    model = unwrapped(model)
    host = _seen(model)
    return describe_hf(model) if isinstance(host, HFViT) else describe(model)


def _seen(model: nn.Module) -> Host:
    """A host, checked, or a slim model seen as its host."""
    return open_slim(model) if _is_slim(unwrapped(model)) else open_host(model)


def _is_slim(model: nn.Module) -> bool:
    return any(map(is_slim_block, model.modules()))


def rebuild_host(spec: Mapping[str, Any], most_blocks: int | None = None) -> nn.Module:
    """The host of a run folder, with fresh weights; RunError for a damaged description, and for one of more blocks."""
    try:
        schema, build = (HFSpec, rebuild_hf) if spec.get("library") == LIBRARY else (TimmSpec, rebuild)
        depth = schema.model_validate(spec).depth
        if most_blocks is not None and depth > most_blocks:
            raise ValueError(f"{depth} blocks have more weights than there are")
        return build(spec)
    except UnsupportedModel:
        raise
    except Exception as error:  # a damaged description can make timm fail in any way
        why = explain(error) if isinstance(error, ValidationError) else first_words(error)
        raise RunError(f"The run's config.json does not describe a model this patchslim can build: {why}.") from None
