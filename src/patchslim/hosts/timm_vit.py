"""timm's VisionTransformer as a host: DeiT, DeiT-III, augreg, DINOv2, CLIP, SigLIP and their like. What can't be
reproduced exactly is refused by name, with the reason."""

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from timm import layers
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.base import BlockShape, Host, HostInfo, Readout, weighted_mean
from patchslim.hosts.block import BlockNames
from patchslim.hosts.parts import bare, check_per_token, like_weights
from patchslim.hosts.projections import FusedQkv
from patchslim.hosts.shells import host_parameters
from patchslim.hosts.timm_embed import MatmulPatchEmbed, put_matmul_embed_
from patchslim.models import ResidualScale
from patchslim.models.stem_vit import linear_macs

MODELS = (VisionTransformer, VisionTransformerDistilled)
TIMM_NORMS = ("LayerNorm", "LayerNormFp32", "RmsNorm", "RmsNormFp32", "SimpleNorm", "SimpleNormFp32")
NORMS: dict[str, Any] = {"torch.LayerNorm": nn.LayerNorm} | {name: getattr(layers, name) for name in TIMM_NORMS}
MLPS = (layers.Mlp, layers.GluMlp, layers.SwiGLU)
PLAIN = (nn.Linear, nn.Identity, nn.Dropout, layers.DropPath, layers.LayerScale, ResidualScale)
ACTIVATIONS = (nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid, layers.QuickGELU, layers.GELU, layers.GELUTanh)
# Parts that treat every token by itself, so that leaving tokens out can't change the others; unknown ones are tried.
PER_TOKEN = {*NORMS.values(), *MLPS, *PLAIN, *ACTIVATIONS}

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

BLOCK = BlockNames("norm1", "attn", "norm2", FusedQkv(), scales=("ls1", "ls2"), drops=("drop_path1", "drop_path2"))
HEADS = ("head", "head_dist", "aux_head")  # the second is of distilled models, the third LV-ViT's


class TimmViT(Host):
    """A timm VisionTransformer seen as a patchslim host."""

    def __init__(self, model: nn.Module, info: HostInfo | None = None) -> None:
        super().__init__(model, "blocks", BLOCK, info)

    @property
    def embedding(self) -> nn.Module:
        """What makes the patches."""
        return self.model.patch_embed

    @staticmethod
    def classifiers_of(model: nn.Module) -> Sequence[nn.Module]:
        """Those of the names that a model has."""
        return [getattr(model, name) for name in HEADS if hasattr(model, name)]

    @staticmethod
    def check(model: nn.Module) -> None:
        """Raise UnsupportedModel, naming part and reason, unless every part is one patchslim reproduces."""
        if type(model) not in MODELS:
            name = type(model).__name__
            reason = next((why for word, why in REASONS.items() if word in name.lower()), "it is another architecture")
            raise UnsupportedModel(f"{name} can't be slimmed: {reason}; {SUPPORTED}.")
        _check_outside(model)
        check_blocks(model)

    def described(self) -> HostInfo:
        """The description of a host, or of the host a slim model was made from."""
        model, embed = self.model, self.model.patch_embed
        head_macs, head_macs_per_token = _head_macs(model)
        return self._info(
            embed,
            family=f"timm {type(model).__name__}",
            readout=_readout(model),
            parameters=host_parameters(model, model.blocks),
            embed_macs=embed.num_patches * model.embed_dim * model.in_chans * math.prod(embed.patch_size),
            head_macs=head_macs,
            head_macs_per_token=head_macs_per_token,
            head_reads_prefix=model.pool_include_prefix,
        )

    def _info(self, stem: Any, **own: Any) -> HostInfo:
        """What all models with timm's blocks say alike, and what a family has found out of its own."""
        model = self.model
        widths = ((model.embed_dim, block.attn.attn_dim, linear_macs(block.mlp)) for block in model.blocks)
        return HostInfo(
            name=model_name(model),
            depth=len(model.blocks),
            width=model.embed_dim,
            heads=model.blocks[0].attn.num_heads,
            prefix_tokens=model.num_prefix_tokens,
            patches=stem.num_patches,
            grid=tuple(stem.grid_size),
            image_size=tuple(stem.img_size),
            channels=model.in_chans,
            classes=model.num_classes,
            blocks=tuple(BlockShape(*own) for own in widths),
            **own,
        )

    def embed(self, images: Tensor) -> Tensor:
        """Z_0: images (B, C, H, W) → (B, p + N, d)."""
        model = self.model
        return model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(like_weights(model, images)))))

    def features(self, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """What the classifier reads: (B, n, d) → (B, d), a pool counting tokens by their weight (B, n)."""
        model, x = self.model, self.model.norm(tokens)
        if weight is None or not self.info.reads_patches:
            return model.forward_head(x, pre_logits=True)
        x, weight = x[:, self.info.first_pooled :], weight[:, self.info.first_pooled :].to(x.dtype)
        if self.info.readout == "attention-pool":
            pooled = model.attn_pool(x, attn_mask=weight.log()[:, None, None, :])
        else:
            pooled = weighted_mean(x, weight)
        return model.head_drop(model.fc_norm(pooled))

    def logits(self, tokens: Tensor) -> Tensor:
        """The host's output: (B, n, d) → (B, classes)."""
        return self.model.forward_head(self.model.norm(tokens))

    def pool_rows(self, tokens: Tensor) -> Tensor:
        """The attention pool's own rows: (B, n, d) → (B, H · latents, n), each summing to 1."""
        pool, y = self.model.attn_pool, self.model.norm(tokens)[:, self.info.first_pooled :]
        batch, n, _ = y.shape
        q = pool.q(pool.latent.expand(batch, -1, -1)).reshape(batch, -1, pool.num_heads, pool.head_dim)
        k = pool.kv(y).reshape(batch, n, 2, pool.num_heads, pool.head_dim)[:, :, 0]
        q, k = pool.q_norm(q.transpose(1, 2)), pool.k_norm(k.transpose(1, 2))
        rows = (q * pool.scale @ k.transpose(-2, -1)).float().softmax(dim=-1).flatten(1, 2)
        return F.pad(rows, (self.info.first_pooled, 0)).to(tokens.dtype)

    def slimmed_(self, blocks: Sequence[nn.Module]) -> nn.Module:
        """Put slim blocks and the faster patch embedding in place of the model's own and return the model."""
        put_matmul_embed_(self.model)
        embed = self.embedding
        if isinstance(embed, MatmulPatchEmbed):
            embed.tokens_leave = any(getattr(block, "fewer", False) for block in blocks)
        return super().slimmed_(blocks)


def model_name(model: nn.Module) -> str:
    """timm's architecture name where the model was made from one, else its class."""
    config: Any = getattr(model, "pretrained_cfg", None)
    name = config.get("architecture") if isinstance(config, dict) else getattr(config, "architecture", None)
    return name or type(model).__name__


def _readout(model: Any) -> Readout:
    if isinstance(model, VisionTransformerDistilled):
        return "class+distillation"
    if isinstance(model.attn_pool, layers.AttentionPoolLatent):
        return "attention-pool"
    return "class" if model.global_pool == "token" else "mean"


def _head_macs(model: Any) -> tuple[int, int]:
    """(fixed, per token read) of pooling and classifier."""
    fixed, pool = sum(map(linear_macs, TimmViT.classifiers_of(model))), model.attn_pool
    if pool is None:
        return fixed, 0
    per_latent = sum(linear_macs(part) for part in (pool.q, pool.proj, pool.mlp) if part is not None)
    width = pool.num_heads * pool.head_dim
    return fixed + pool.latent_len * per_latent, linear_macs(pool.kv) + 2 * pool.latent_len * width


def check_blocks(model: Any) -> None:
    """Raise UnsupportedModel unless all blocks are timm's, of parts that act on every token by itself."""
    for index, block in enumerate(model.blocks):
        _check_block(block, f"block {index}", model.embed_dim)


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


def _check_block(block: Any, where: str, width: int) -> None:
    if type(block) is not Block:
        kind = type(block).__name__
        why = "attention and MLP run in parallel" if "Parallel" in kind else "it is not a plain pre-norm Block"
        raise _refuse(f"{where} of type {kind}", why)
    attn: Any = block.attn
    if type(attn) is not layers.Attention or attn.gate is not None:
        kind = "gated attention" if type(attn) is layers.Attention else type(attn).__name__
        raise _refuse(f"{where} with {kind}", "only timm's plain Attention is reproduced")
    if not bare(attn):
        why = "a slim block calls the parts of attention and never the whole; hook attn.qkv or attn.proj"
        raise _refuse(f"{where}, whose attention has a hook or a forward of its own", why)
    if type(attn.attn_drop) is not nn.Dropout:
        raise _refuse(f"{where} with attention dropout {type(attn.attn_drop).__name__}", "only its rate is read")
    inner, head = attn.attn_dim, attn.head_dim
    widths = {"attn.qkv": width, "attn.q_norm": head, "attn.k_norm": head, "attn.norm": inner, "attn.proj": inner}
    others = ("norm1", "attn.proj_drop", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2")
    check_per_token(block, widths | dict.fromkeys(others, width), lambda own: type(own) in PER_TOKEN, where)
