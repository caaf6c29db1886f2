"""Which transformers models can be reproduced exactly. What can't is refused by name, with the reason."""

from __future__ import annotations

from typing import Any

from torch import nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.hf_parts import KINDS, OLDEST, OPENED_AS, hf_class, kind_of, part, tower_of
from patchslim.hosts.projections import SeparateQkv

SUPPORTED = "ViT, DeiT, DINOv2 (also with registers) and the vision towers of CLIP and SigLIP are supported"


def check_hf(model: Any) -> None:
    """Raise UnsupportedModel, naming part and reason, unless every part is one patchslim reproduces."""
    cls = hf_class(model)
    name = type(model).__name__
    if name in OPENED_AS:
        raise UnsupportedModel(f"{name} also reads text; slim its tower, model.vision_model.")
    if cls is None or type(model) is not cls or name not in KINDS:
        raise UnsupportedModel(f"{name} of transformers can't be slimmed: it is another architecture; {SUPPORTED}.")
    try:
        _check_parts(model)
    except AttributeError as error:
        raise UnsupportedModel(
            f"This {name} is not laid out as patchslim knows it ({error}); transformers {OLDEST} or newer is needed."
        ) from None
    config: Any = model.config
    if config.output_hidden_states or getattr(config, "output_attentions", False):
        raise UnsupportedModel(
            "This model's config asks for hidden states or attentions of every block, and those of a slim model are of "
            "fewer tokens; switch output_hidden_states and output_attentions off."
        )


def _check_parts(model: Any) -> None:
    kind, tower = kind_of(model), tower_of(model)
    family, names = kind.family, kind.family.names
    own = names.attention
    assert isinstance(own, SeparateQkv)
    for index, block in enumerate(part(tower, family.blocks)):
        if type(block).__name__ != family.layer:
            raise _refuse(index, f"is a {type(block).__name__}", f"not a {family.layer}")
        attn = getattr(block, names.attn)
        for layer in (attn.q_proj, attn.k_proj, attn.v_proj, getattr(attn, own.out)):
            if type(layer) is not nn.Linear:
                raise _refuse(index, f"has a {type(layer).__name__} in its attention", "it has to be a plain Linear")
        for setting in (own.heads, own.scale_name, own.dropout_name):
            getattr(attn, setting)
        for norm in (names.norm1, names.norm2):
            if type(getattr(block, norm)) is not nn.LayerNorm:
                raise _refuse(index, f"has a {type(getattr(block, norm)).__name__}", "it has to be a plain LayerNorm")
    part(tower, family.norm)
    if type(part(tower, family.proj)) is not nn.Conv2d:
        raise UnsupportedModel("This model's patches are not made by a plain convolution, so it can't be slimmed.")
    if kind.readout == "attention-pool" and not tower.use_head:
        raise UnsupportedModel("This SigLIP tower has no pooling head, so nothing says what is read of its patches.")


def _refuse(index: int, what: str, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"This model can't be slimmed because block {index} {what}: {reason}.")
