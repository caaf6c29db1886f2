"""timm's VisionTransformer as a host: DeiT, DeiT-III, augreg, DINOv2, CLIP, SigLIP and their like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from timm.layers import AttentionPoolLatent
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from patchslim.hosts.base import BlockShape, HostInfo, Readout
from patchslim.hosts.shells import host_parameters
from patchslim.hosts.timm_check import check
from patchslim.hosts.timm_embed import matmul_embed
from patchslim.hosts.timm_host import TimmHost
from patchslim.hosts.timm_spec import describe


class TimmViT(TimmHost):
    """A timm VisionTransformer seen as a patchslim host."""

    heads = ("head", "head_dist")  # distilled models have one on each of two tokens

    def __init__(self, model: nn.Module) -> None:
        check(model)
        super().__init__(model, _info(model))

    @staticmethod
    def info_of(model: nn.Module) -> HostInfo:
        """The description of a host, or of the host a slim model was made from: nothing is checked."""
        return _info(model)

    def embed(self, images: Tensor) -> Tensor:
        """Z_0: images (B, C, H, W) → (B, p + N, d)."""
        model = self.model
        return model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))

    def features(self, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """What the classifier reads: (B, n, d) → (B, d), a pool counting tokens by their weight (B, n)."""
        model, x = self.model, self.model.norm(tokens)
        if weight is None or not self.info.reads_patches:
            return model.forward_head(x, pre_logits=True)
        first = 0 if self.info.head_reads_prefix else self.info.prefix_tokens
        x, weight = x[:, first:], weight[:, first:].to(x.dtype)
        if self.info.readout == "attention-pool":
            pooled = model.attn_pool(x, attn_mask=weight.log()[:, None, None, :])
        else:
            pooled = (x * weight[..., None]).sum(dim=1) / weight.sum(dim=1, keepdim=True)
        return model.head_drop(model.fc_norm(pooled))

    def readout_moment(self, tokens: Tensor) -> Tensor:
        """R of the impact recursion: (B, n, d) → (B, n, n)."""
        batch, n, _ = tokens.shape
        if self.info.readout in ("class", "class+distillation"):
            read = torch.zeros(n, device=tokens.device)
            read[: 1 if self.info.readout == "class" else 2] = 1
            return torch.diag(read).expand(batch, n, n)
        first = 0 if self.info.head_reads_prefix else self.info.prefix_tokens
        if self.info.readout == "mean":
            row = torch.zeros(n, device=tokens.device)
            row[first:] = 1 / (n - first)
            return torch.outer(row, row).expand(batch, n, n)
        rows = torch.zeros(batch, self.model.attn_pool.num_heads * self.model.attn_pool.latent_len, n)
        rows = rows.to(tokens)
        rows[:, :, first:] = _pool_attention(self.model.attn_pool, self.model.norm(tokens)[:, first:])
        return rows.transpose(1, 2) @ rows / rows.shape[1]

    def slimmed_(self, blocks: Sequence[nn.Module]) -> nn.Module:
        """Put slim blocks and the faster patch embedding in place of the model's own and return the model."""
        self.model.patch_embed = matmul_embed(self.model.patch_embed)
        return super().slimmed_(blocks)

    def spec(self) -> Mapping[str, Any]:
        """Settings from which `timm_spec.rebuild` makes the host again."""
        return describe(self.model)


def _pool_attention(pool: Any, y: Tensor) -> Tensor:
    """The attention pool's own rows: y (B, n, d) → (B, H · latents, n), each summing to 1."""
    batch, n, _ = y.shape
    q = pool.q(pool.latent.expand(batch, -1, -1)).reshape(batch, -1, pool.num_heads, pool.head_dim)
    k = pool.kv(y).reshape(batch, n, 2, pool.num_heads, pool.head_dim)[:, :, 0]
    q, k = pool.q_norm(q.transpose(1, 2)), pool.k_norm(k.transpose(1, 2))
    return (q * pool.scale @ k.transpose(-2, -1)).float().softmax(dim=-1).flatten(1, 2)


def _info(model: Any) -> HostInfo:
    embed = model.patch_embed
    head_macs, head_macs_per_token = _head_macs(model)
    return HostInfo(
        name=model_name(model),
        family=f"timm {type(model).__name__}",
        depth=len(model.blocks),
        width=model.embed_dim,
        heads=model.blocks[0].attn.num_heads,
        prefix_tokens=model.num_prefix_tokens,
        patches=embed.num_patches,
        grid=tuple(embed.grid_size),
        readout=_readout(model),
        image_size=tuple(embed.img_size),
        channels=model.in_chans,
        classes=model.num_classes,
        parameters=host_parameters(model, model.blocks),
        blocks=tuple(block_shape(block) for block in model.blocks),
        embed_macs=embed.num_patches * embed.proj.weight.numel(),
        head_macs=head_macs,
        head_macs_per_token=head_macs_per_token,
        head_reads_prefix=model.pool_include_prefix,
    )


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


def linear_macs(module: nn.Module) -> int:
    """Multiply-accumulates per token: the weights of its linear layers."""
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def block_shape(block: Any) -> BlockShape:
    """Widths of a timm `Block`."""
    return BlockShape(
        width=block.attn.qkv.in_features,
        attention_width=block.attn.attn_dim,
        mlp_macs=linear_macs(block.mlp),
    )


def _head_macs(model: Any) -> tuple[int, int]:
    """(fixed, per token read) of pooling and classifier."""
    heads = [model.head, getattr(model, "head_dist", nn.Identity())]
    fixed = sum(linear_macs(head) for head in heads)
    pool = model.attn_pool
    if pool is None:
        return fixed, 0
    per_latent = sum(linear_macs(part) for part in (pool.q, pool.proj, pool.mlp) if part is not None)
    width = pool.num_heads * pool.head_dim
    return fixed + pool.latent_len * per_latent, linear_macs(pool.kv) + 2 * pool.latent_len * width
