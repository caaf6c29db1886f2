"""Which timm models can be reproduced exactly. What can't is refused by name, with the reason."""

from typing import Any

from timm import layers
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn

from patchslim.errors import UnsupportedModel
from patchslim.models import ResidualScale

MODELS = (VisionTransformer, VisionTransformerDistilled)
# Layers that treat every token by itself, so that leaving tokens out can't change the others.
TIMM_NORMS = ("LayerNorm", "LayerNormFp32", "RmsNorm", "RmsNormFp32", "SimpleNorm", "SimpleNormFp32")
NORMS: dict[str, Any] = {"torch.LayerNorm": nn.LayerNorm} | {name: getattr(layers, name) for name in TIMM_NORMS}
MLPS = (layers.Mlp, layers.GluMlp, layers.SwiGLU)
SCALES = (layers.LayerScale, ResidualScale, nn.Identity)
PATHS = (layers.DropPath, nn.Identity)

# Why well-known families are refused, by a word in the class name.
REASONS = {
    "swin": "its windows need the whole grid of patches in every block",
    "eva": "rotary or relative positions enter inside attention, per patch position",
    "rope": "rotary positions enter inside attention, per patch position",
    "beit": "a relative position bias enters inside attention, per pair of patch positions",
    "naflex": "its token count differs per image",
    "hybrid": "a convolutional stem comes before the patches",
    "relpos": "a relative position bias enters inside attention, per pair of patch positions",
    "cait": "class attention and talking heads are other blocks than a ViT's",
    "xcit": "its attention runs over channels, not over patches",
    "pyramid": "it merges patches between stages by a strided convolution",
    "mixer": "it mixes patches by weights tied to their positions",
    "conv": "it is a convolutional network",
    "resnet": "it is a convolutional network",
}
SUPPORTED = "timm's VisionTransformer (DeiT, DeiT-III, ViT, DINOv2, CLIP, SigLIP), T2T-ViT and LV-ViT are supported"


def check(model: nn.Module) -> None:
    """Raise UnsupportedModel, naming part and reason, unless every part is one patchslim reproduces."""
    if type(model) not in MODELS:
        name = type(model).__name__
        reason = next((why for word, why in REASONS.items() if word in name.lower()), "it is another architecture")
        raise UnsupportedModel(f"{name} can't be slimmed: {reason}; {SUPPORTED}.")
    _check_outside(model)
    check_blocks(model)


def check_blocks(model: Any) -> None:
    """Raise UnsupportedModel unless all blocks are timm's, of parts that act on every token by itself."""
    for index, block in enumerate(model.blocks):
        _check_block(block, index)


def _refuse(part: str, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"This model can't be slimmed because of its {part}: {reason}.")


def _check_outside(model: Any) -> None:
    if type(model.patch_embed) is not layers.PatchEmbed:
        raise _refuse(
            f"patch embedding {type(model.patch_embed).__name__}", "only a plain PatchEmbed (no hybrid stem) is"
        )
    if not isinstance(model.patch_drop, nn.Identity):
        raise _refuse("patch dropout", "make the model with patch_drop_rate=0")
    if model.patch_embed.num_patches is None:
        raise _refuse("open image size", "make the model with a fixed img_size")
    if min(model.patch_embed.grid_size) < 1:
        raise _refuse(f"image size {model.patch_embed.img_size}", "it is smaller than one patch")
    pool, known = model.attn_pool, "only class, mean and latent-attention pooling are reproduced"
    if pool is not None and (type(pool) is not layers.AttentionPoolLatent or pool.pos_embed is not None):
        raise _refuse(f"pool {type(pool).__name__}", known)
    if pool is None and model.global_pool not in ("token", "avg"):
        raise _refuse(f"pooling {model.global_pool!r}", known)


def _check_block(block: Any, index: int) -> None:
    where = f"block {index}"
    if type(block) is not Block:
        kind = type(block).__name__
        why = "attention and MLP run in parallel" if "Parallel" in kind else "it is not a plain pre-norm Block"
        raise _refuse(f"{where} of type {kind}", why)
    if type(block.attn) is not layers.Attention:
        raise _refuse(f"{where} with {type(block.attn).__name__}", "only timm's plain Attention is reproduced")
    if block.attn.gate is not None:
        raise _refuse(f"{where} with gated attention", "only timm's plain Attention is reproduced")
    if type(block.attn.qkv) is not nn.Linear:
        raise _refuse(f"{where} with a {type(block.attn.qkv).__name__} for qkv", "it has to be a plain Linear")
    norms = (block.norm1, block.norm2, block.attn.norm, block.attn.q_norm, block.attn.k_norm)
    parts = {
        "norm": (norms, (*NORMS.values(), nn.Identity)),
        "MLP": ((block.mlp,), MLPS),
        "scale": ((block.ls1, block.ls2), SCALES),
        "drop path": ((block.drop_path1, block.drop_path2), PATHS),
    }
    for name, (modules, allowed) in parts.items():
        for module in modules:
            if type(module) not in allowed:
                raise _refuse(f"{where} with {name} {type(module).__name__}", "it is not known to act per token")
