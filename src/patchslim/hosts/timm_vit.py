"""timm's VisionTransformer as a host: DeiT, DeiT-III, augreg, DINOv2, CLIP, SigLIP and their like."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from timm.layers import AttentionPoolLatent
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from patchslim.hosts.base import BlockShape, Host, HostInfo, Readout, weighted_mean
from patchslim.hosts.block import BlockNames
from patchslim.hosts.projections import FusedQkv
from patchslim.hosts.shells import host_parameters
from patchslim.hosts.timm_check import check
from patchslim.hosts.timm_embed import put_matmul_embed_
from patchslim.models.stem_vit import linear_macs

BLOCK = BlockNames("norm1", "attn", "norm2", FusedQkv(), scales=("ls1", "ls2"), drops=("drop_path1", "drop_path2"))
HEADS = ("head", "head_dist", "aux_head")  # the second is of distilled models, the third LV-ViT's


class TimmViT(Host):
    """A timm VisionTransformer seen as a patchslim host."""

    check = staticmethod(check)

    def __init__(self, model: nn.Module, info: HostInfo | None = None) -> None:
        super().__init__(model, "blocks", BLOCK, info)

    @staticmethod
    def classifiers_of(model: nn.Module) -> Sequence[nn.Module]:
        """Those of the names that a model has."""
        return [getattr(model, name) for name in HEADS if hasattr(model, name)]

    def described(self) -> HostInfo:
        """The description of a host, or of the host a slim model was made from."""
        model, embed = self.model, self.model.patch_embed
        head_macs, head_macs_per_token = _head_macs(model)
        return self._info(
            embed,
            family=f"timm {type(model).__name__}",
            readout=_readout(model),
            parameters=host_parameters(model, model.blocks),
            embed_macs=embed.num_patches * embed.proj.weight.numel(),
            head_macs=head_macs,
            head_macs_per_token=head_macs_per_token,
            head_reads_prefix=model.pool_include_prefix,
        )

    def _info(self, stem: Any, **own: Any) -> HostInfo:
        """What all models with timm's blocks say alike, and what a family has found out of its own."""
        model = self.model
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
            blocks=tuple(_block_shape(block) for block in model.blocks),
            **own,
        )

    def embed(self, images: Tensor) -> Tensor:
        """Z_0: images (B, C, H, W) → (B, p + N, d)."""
        model = self.model
        return model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))

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
        return super().slimmed_(blocks)


def model_name(model: nn.Module) -> str:
    """timm's architecture name where the model was made from one, else its class."""
    config: Any = getattr(model, "pretrained_cfg", None)
    name = config.get("architecture") if isinstance(config, dict) else getattr(config, "architecture", None)
    return name or type(model).__name__


def _readout(model: Any) -> Readout:
    if isinstance(model, VisionTransformerDistilled):
        return "class+distillation"
    if isinstance(model.attn_pool, AttentionPoolLatent):
        return "attention-pool"
    return "class" if model.global_pool == "token" else "mean"


def _block_shape(block: Any) -> BlockShape:
    return BlockShape(block.attn.qkv.in_features, block.attn.attn_dim, linear_macs(block.mlp))


def _head_macs(model: Any) -> tuple[int, int]:
    """(fixed, per token read) of pooling and classifier."""
    fixed, pool = sum(map(linear_macs, TimmViT.classifiers_of(model))), model.attn_pool
    if pool is None:
        return fixed, 0
    per_latent = sum(linear_macs(part) for part in (pool.q, pool.proj, pool.mlp) if part is not None)
    width = pool.num_heads * pool.head_dim
    return fixed + pool.latent_len * per_latent, linear_macs(pool.kv) + 2 * pool.latent_len * width
