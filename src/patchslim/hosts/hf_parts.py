"""Where models of Hugging Face transformers keep their parts: plain names, so that nothing has to be imported. What
can't be reproduced is refused by name, with the reason."""

import sys
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.base import Readout
from patchslim.hosts.block import BlockNames
from patchslim.hosts.parts import check_per_token
from patchslim.hosts.projections import OF_BLOCKS, Projections

LIBRARY = "transformers"
OLDEST = "5.22"  # whose names these are
SUPPORTED = "ViT, DeiT, DINOv2 (also with registers) and the vision towers of CLIP and SigLIP are supported"


# Parts that treat every token by itself; transformers' own do, and unknown ones are tried.
PER_TOKEN = {nn.Linear, nn.LayerNorm, nn.Identity, nn.Dropout, nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid}
NAMELESS = (
    "This model gives a plain tuple, and patchslim goes by the names of what it gives; "
    "set its config's return_dict to True."
)


@dataclass(frozen=True)
class Family:
    """Models with the same tower: embedding, layers and final norm."""

    name: str
    layer: str  # the class of its layers
    blocks: str  # where the tower keeps them
    proj: str  # the convolution that makes patches
    norm: str  # after the last block
    names: BlockNames
    prefix: int  # tokens before the patches, registers left out
    pre_norm: str | None = None
    norm_patches: bool = True  # whether the final norm is for the patches too, or for the class token only
    any_size: bool = False  # whether positions are fitted to the image size, whatever it is


@dataclass(frozen=True)
class Kind:
    """One class of models: its family, where its tower is, what its heads read and how they are called."""

    family: Family
    tower: str  # empty where the model is the tower
    readout: Readout
    heads: tuple[str, ...] = ()


ATTENTION = Projections("num_attention_heads", "scaling", "o_proj", "attention_dropout")
OPENAI_ATTENTION = Projections("num_heads", "scale", "out_proj", "dropout")
VIT_BLOCK = BlockNames("layernorm_before", "attention", "layernorm_after", ATTENTION, drops=("dropout", "dropout"))
DINO_SCALES, DINO_DROPS = ("layer_scale1", "layer_scale2"), ("drop_path", "drop_path")
DINO_BLOCK = BlockNames("norm1", "attention", "norm2", ATTENTION, scales=DINO_SCALES, drops=DINO_DROPS)
OPENAI_BLOCK = BlockNames("layer_norm1", "self_attn", "layer_norm2", OPENAI_ATTENTION)
PROJECTION, EMBEDDING = "embeddings.patch_embeddings.projection", "embeddings.patch_embedding"

VIT = Family("ViT", "ViTLayer", "layers", PROJECTION, "layernorm", VIT_BLOCK, 1)
DEIT = replace(VIT, name="DeiT", layer="DeiTLayer", prefix=2)
DINO = Family("DINOv2", "Dinov2Layer", "encoder.layer", PROJECTION, "layernorm", DINO_BLOCK, 1, any_size=True)
REGISTERS = replace(DINO, name="DINOv2 with registers", layer="Dinov2WithRegistersLayer")
SIGLIP = Family("SigLIP", "SiglipEncoderLayer", "encoder.layers", EMBEDDING, "post_layernorm", OPENAI_BLOCK, 0)
CLIP = replace(SIGLIP, name="CLIP", layer="CLIPEncoderLayer", prefix=1, pre_norm="pre_layrnorm", norm_patches=False)

CLASSIFIER, BOTH_CLASSIFIERS = ("classifier",), ("cls_classifier", "distillation_classifier")
KINDS = {
    "ViTModel": Kind(VIT, "", "class", ("pooler",)),
    "ViTForImageClassification": Kind(VIT, "vit", "class", CLASSIFIER),
    "DeiTModel": Kind(DEIT, "", "class", ("pooler",)),
    "DeiTForImageClassification": Kind(DEIT, "deit", "class", CLASSIFIER),
    "DeiTForImageClassificationWithTeacher": Kind(DEIT, "deit", "class+distillation", BOTH_CLASSIFIERS),
    "Dinov2Model": Kind(DINO, "", "class"),
    "Dinov2ForImageClassification": Kind(DINO, "dinov2", "class+mean", CLASSIFIER),
    "Dinov2WithRegistersModel": Kind(REGISTERS, "", "class"),
    "Dinov2WithRegistersForImageClassification": Kind(REGISTERS, "dinov2_with_registers", "class+mean", CLASSIFIER),
    "CLIPVisionModel": Kind(CLIP, "", "class"),
    "CLIPVisionModelWithProjection": Kind(CLIP, "vision_model", "class", ("visual_projection",)),
    "CLIPForImageClassification": Kind(CLIP, "vision_model", "mean", CLASSIFIER),
    "SiglipVisionModel": Kind(SIGLIP, "", "attention-pool"),
    "SiglipForImageClassification": Kind(SIGLIP, "vision_model", "mean", CLASSIFIER),
}
# Models of pictures and words: their vision tower is opened.
OPENED_AS = {"CLIPModel": "CLIPVisionModelWithProjection", "SiglipModel": "SiglipVisionModel"}


def hf_class(model: nn.Module) -> type[nn.Module] | None:
    """The class of transformers that a model is of, also once it is slim; None for other libraries' models."""
    if LIBRARY not in sys.modules:
        return None  # nobody can have made one
    return next((base for base in type(model).__mro__ if base.__module__.startswith(f"{LIBRARY}.models.")), None)


def kind_of(model: nn.Module) -> Kind:
    """What kind of model this is; UnsupportedModel for one that is in no table."""
    name = (hf_class(model) or type(model)).__name__
    if name not in KINDS:
        raise UnsupportedModel(
            f"{name} of transformers is no model that patchslim knows; take a ViT, DeiT, DINOv2, CLIP or SigLIP."
        )
    return KINDS[name]


def tower_of(model: nn.Module) -> Any:
    """The vision tower: embedding, layers, norm."""
    return model.get_submodule(kind_of(model).tower)


def check_hf(model: Any) -> None:
    """Raise UnsupportedModel, naming part and reason, unless every part is one patchslim reproduces."""
    name = type(model).__name__
    if name in OPENED_AS:
        raise UnsupportedModel(f"{name} also reads text; slim its tower, model.vision_model.")
    if type(model) is not hf_class(model) or name not in KINDS:
        raise UnsupportedModel(f"{name} of transformers can't be slimmed: it is another architecture; {SUPPORTED}.")
    try:
        tower = tower_of(model)
        _check_parts(kind_of(model), tower)
    except AttributeError as error:
        raise UnsupportedModel(
            f"This {name} is not laid out as patchslim knows it ({error}); transformers {OLDEST} or newer is needed."
        ) from None
    if any(getattr(tower.config, wanted, False) for wanted in OF_BLOCKS):
        raise UnsupportedModel(
            "This model's config asks for hidden states or attentions of every block, and those of a slim model are of "
            "fewer tokens; switch output_hidden_states and output_attentions off."
        )
    configs: list[Any] = [model.config, tower.config]
    if not all(config.return_dict for config in configs):
        raise UnsupportedModel(NAMELESS)


def _check_parts(kind: Kind, tower: Any) -> None:
    family = kind.family
    for index, block in enumerate(tower.get_submodule(family.blocks)):
        _check_block(block, family, f"block {index}", tower.config.hidden_size)
    tower.get_submodule(family.norm)
    tower.get_submodule(family.proj)
    if kind.readout == "attention-pool" and not tower.use_head:
        raise UnsupportedModel("This SigLIP tower has no pooling head, so nothing says what is read of its patches.")


def _check_block(block: Any, family: Family, where: str, width: int) -> None:
    if type(block).__name__ != family.layer:
        raise _refuse(f"{where}, a {type(block).__name__}", f"it is no {family.layer}")
    names = family.names
    attn, own = getattr(block, names.attn), names.attention
    if not all(map(_of_library, (type(attn), *attn._forward_hooks.values(), *attn._forward_pre_hooks.values()))):
        raise _refuse(
            f"{where}, whose attention has a hook or is a {type(attn).__name__}",
            f"a slim block calls the parts of attention and never the whole; hook {names.attn}.{own.out}",
        )
    for setting in (own.scale_name, own.dropout_name):
        getattr(attn, setting)
    parts = [names.norm1, names.norm2, names.mlp, *(names.scales or ()), *(names.drops or ())]
    parts += [f"{names.attn}.{layer}" for layer in ("q_proj", "k_proj", "v_proj")]
    reads = dict.fromkeys(parts, width) | {f"{names.attn}.{own.out}": attention_width(attn, own.heads)}
    check_per_token(block, reads, lambda part: type(part) in PER_TOKEN or _of_library(type(part)), where)


def attention_width(attn: Any, heads: str) -> int:
    """Channels of all heads together."""
    return getattr(attn, heads) * attn.head_dim


def _of_library(own: Any) -> bool:
    """Whether a class or function is transformers' own: its layers act on every token by themselves, its attention
    left aside, and its hooks only note what passes."""
    return own.__module__.startswith(f"{LIBRARY}.")


def _refuse(part: str, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"This model can't be slimmed because of its {part}: {reason}.")
