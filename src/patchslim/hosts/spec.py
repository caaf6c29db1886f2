"""The schema of a host's settings in a run's config.json: whatever they say is checked before a module is made of it.

Sizes are bounded here; whether they are those of the weights is seen by building the host without memory.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MOST = 2**20  # of any size: no host has a side, a width or a number of classes beyond it
Size = Annotated[int, Field(ge=1, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Pair = Annotated[list[Size], Field(min_length=2, max_length=2)]
Rate = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=200)]
PerChannel = Field(default=None, min_length=1, max_length=2**12)


class Settings(BaseModel):
    """Nothing is converted and nothing unknown is let through."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Preparation(Settings):
    """How pictures become tensors, in timm's words; what is left out is timm's usual."""

    architecture: Name | None = None
    tag: Name | None = None
    input_size: Annotated[list[Size], Field(min_length=3, max_length=3)] | None = None
    mean: list[Finite] | None = PerChannel
    std: list[Positive] | None = PerChannel
    interpolation: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"] | None = None
    crop_pct: float | None = Field(default=None, ge=0.1, le=10)  # the picture is made so many times larger
    crop_mode: Literal["center", "squash", "border"] | None = None


class HFPreparation(Preparation):
    """The same of a model of Hugging Face, whose name and size are nowhere else."""

    architecture: Name
    input_size: Annotated[list[Size], Field(min_length=3, max_length=3)]


class Layer(Settings):
    """A class of layers by its name in a table, and its own settings."""

    name: Name = Field(alias="class")
    eps: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    gate_last: bool | None = None


class Blocks(Settings):
    """What all models of timm's blocks have."""

    in_chans: Size
    num_classes: Count
    embed_dim: Size
    img_size: Pair
    depth: int = Field(ge=1, le=4096)
    num_heads: Size
    mlp_ratio: float = Field(gt=0, le=1024)
    qkv_bias: bool
    drop_rate: Rate
    attn_drop_rate: Rate
    drop_path_rate: Rate


class Vit(Blocks):
    """What timm's VisionTransformer is made with."""

    global_pool: Name
    no_embed_class: bool
    pool_include_prefix: bool
    dynamic_img_size: bool
    patch_size: Pair
    qk_norm: bool
    scale_attn_norm: bool
    scale_mlp_norm: bool
    proj_bias: bool
    init_values: Finite | None
    class_token: bool
    pos_embed: Literal["none", "learn"]
    reg_tokens: Count
    pre_norm: bool
    final_norm: bool
    fc_norm: bool
    dynamic_img_pad: bool
    pos_drop_rate: Rate
    proj_drop_rate: Rate
    norm_layer: Layer
    act_layer: Name
    mlp_layer: Layer
    embed_norm: bool


class T2T(Blocks):
    """What a T2T-ViT is made with."""

    tokens_type: Name
    token_dim: Size
    splits: list[Annotated[list[Count], Field(min_length=3, max_length=3)]] = Field(min_length=1, max_length=16)


class LV(Blocks):
    """What an LV-ViT is made with."""

    patch_size: Size
    stem_width: Size
    skip_lam: Positive
    readout: Name


class TimmSpec(Settings):
    """A model of timm's blocks."""

    name: Name = Field(alias="class")
    kwargs: Vit | T2T | LV
    pretrained_cfg: Preparation

    @property
    def depth(self) -> int:
        """Blocks."""
        return self.kwargs.depth


class HFSpec(Settings):
    """A model of Hugging Face. Its config is transformers' own, and as free as that; numbers in it are bounded."""

    library: Name
    version: Name
    name: Name = Field(alias="class")
    config: dict[str, Any]
    attention: Literal["eager", "sdpa"]
    kwargs: dict[Literal["add_pooling_layer"], bool]
    pretrained_cfg: HFPreparation

    @field_validator("config")
    @classmethod
    def _bounded(cls, config: dict[str, Any]) -> dict[str, Any]:
        _check_bounded(config)
        return config

    @property
    def depth(self) -> int:
        """Blocks of the vision tower."""
        depth = self.config.get("vision_config", self.config).get("num_hidden_layers")
        return depth if isinstance(depth, int) and depth > 0 else MOST


def _check_bounded(value: Any) -> None:
    """Raise ValueError for a number that is no size of a model."""
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _check_bounded(inner)
    if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) <= MOST):
        raise ValueError(f"numbers lie within ±{MOST}")
