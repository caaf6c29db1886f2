"""Where models of Hugging Face transformers keep their parts: plain names, so that nothing has to be imported."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import reduce
from typing import Any

from torch import nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.base import Readout
from patchslim.hosts.block import BlockNames
from patchslim.hosts.projections import SeparateQkv

LIBRARY = "transformers"
OLDEST = "5.22"  # whose names these are


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


ATTENTION = SeparateQkv("o_proj", "num_attention_heads", "scaling", "attention_dropout")
OPENAI_ATTENTION = SeparateQkv("out_proj", "num_heads", "scale", "dropout")
VIT_BLOCK = BlockNames("layernorm_before", "attention", "layernorm_after", ATTENTION, drops=("dropout", "dropout"))
DINO_SCALES, DINO_DROPS = ("layer_scale1", "layer_scale2"), ("drop_path", "drop_path")
DINO_BLOCK = BlockNames("norm1", "attention", "norm2", ATTENTION, scales=DINO_SCALES, drops=DINO_DROPS)
OPENAI_BLOCK = BlockNames("layer_norm1", "self_attn", "layer_norm2", OPENAI_ATTENTION)
PROJECTION, EMBEDDING = "embeddings.patch_embeddings.projection", "embeddings.patch_embedding"

VIT = Family("ViT", "ViTLayer", "layers", PROJECTION, "layernorm", VIT_BLOCK, 1)
DEIT = Family("DeiT", "DeiTLayer", "layers", PROJECTION, "layernorm", VIT_BLOCK, 2)
DINO = Family("DINOv2", "Dinov2Layer", "encoder.layer", PROJECTION, "layernorm", DINO_BLOCK, 1, any_size=True)
REGISTERS = Family(
    "DINOv2 with registers",
    "Dinov2WithRegistersLayer",
    *("encoder.layer", PROJECTION, "layernorm"),
    DINO_BLOCK,
    1,
    any_size=True,
)
CLIP = Family(
    "CLIP",
    "CLIPEncoderLayer",
    *("encoder.layers", EMBEDDING, "post_layernorm"),
    OPENAI_BLOCK,
    1,
    pre_norm="pre_layrnorm",
    norm_patches=False,
)
SIGLIP = Family("SigLIP", "SiglipEncoderLayer", "encoder.layers", EMBEDDING, "post_layernorm", OPENAI_BLOCK, 0)

KINDS = {
    "ViTModel": Kind(VIT, "", "class", ("pooler",)),
    "ViTForImageClassification": Kind(VIT, "vit", "class", ("classifier",)),
    "DeiTModel": Kind(DEIT, "", "class", ("pooler",)),
    "DeiTForImageClassification": Kind(DEIT, "deit", "class", ("classifier",)),
    "DeiTForImageClassificationWithTeacher": Kind(
        DEIT, "deit", "class+distillation", ("cls_classifier", "distillation_classifier")
    ),
    "Dinov2Model": Kind(DINO, "", "class"),
    "Dinov2ForImageClassification": Kind(DINO, "dinov2", "class+mean", ("classifier",)),
    "Dinov2WithRegistersModel": Kind(REGISTERS, "", "class"),
    "Dinov2WithRegistersForImageClassification": Kind(
        REGISTERS, "dinov2_with_registers", "class+mean", ("classifier",)
    ),
    "CLIPVisionModel": Kind(CLIP, "", "class"),
    "CLIPVisionModelWithProjection": Kind(CLIP, "vision_model", "class", ("visual_projection",)),
    "CLIPForImageClassification": Kind(CLIP, "vision_model", "mean", ("classifier",)),
    "SiglipVisionModel": Kind(SIGLIP, "", "attention-pool"),
    "SiglipForImageClassification": Kind(SIGLIP, "vision_model", "mean", ("classifier",)),
}
# Models of pictures and words: their vision tower is opened.
OPENED_AS = {"CLIPModel": "CLIPVisionModelWithProjection", "SiglipModel": "SiglipVisionModel"}


def hf_class(model: nn.Module | type[nn.Module]) -> type[nn.Module] | None:
    """The class of transformers that a model is of, also once it is slim; None for other libraries' models."""
    if LIBRARY not in sys.modules:
        return None  # nobody can have made one
    cls = model if isinstance(model, type) else type(model)
    return next((base for base in cls.__mro__ if base.__module__.startswith(f"{LIBRARY}.models.")), None)


def part(module: Any, path: str) -> Any:
    """A part by its dotted name; the module itself for an empty one."""
    return reduce(getattr, path.split("."), module) if path else module


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
    return part(model, kind_of(model).tower)
