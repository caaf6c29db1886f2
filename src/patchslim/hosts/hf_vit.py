"""Models of transformers as hosts: ViT, DeiT, DINOv2 (with registers), CLIP's and SigLIP's vision towers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from patchslim.hosts.base import BlockShape, HostInfo
from patchslim.hosts.block import BlockMath
from patchslim.hosts.hf_check import check_hf
from patchslim.hosts.hf_data import hf_data_settings
from patchslim.hosts.hf_parts import kind_of, part, tower_of
from patchslim.hosts.hf_spec import describe_hf
from patchslim.hosts.shells import host_parameters
from patchslim.hosts.timm_vit import linear_macs


class HFViT:
    """A transformers model seen as a patchslim host."""

    def __init__(self, model: nn.Module) -> None:
        check_hf(model)
        self._see(model, _info(model))

    @classmethod
    def around(cls, model: nn.Module, info: HostInfo | None = None) -> Self:
        """A model whose blocks have been replaced, seen the same way: nothing is checked."""
        host = cls.__new__(cls)
        host._see(model, cls.info_of(model) if info is None else info)
        return host

    @staticmethod
    def info_of(model: nn.Module) -> HostInfo:
        """The description of a host, or of the host a slim model was made from: nothing is checked."""
        return _info(model)

    def _see(self, model: nn.Module, info: HostInfo) -> None:
        self.model: Any = model
        self.info, self.kind, self.tower = info, kind_of(model), tower_of(model)
        self.math = BlockMath(self.kind.family.names)

    @staticmethod
    def classifiers_of(model: nn.Module) -> Sequence[nn.Module]:
        """Those that are there: a ViT may be without its pooler."""
        found = [getattr(model, name) for name in kind_of(model).heads]
        return [head for head in found if head is not None]

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last."""
        return list(part(self.tower, self.kind.family.blocks))

    @property
    def classifiers(self) -> Sequence[nn.Module]:
        """What turns features into the output: classifiers, a projection, ViT's pooler; often nothing."""
        return self.classifiers_of(self.model)

    def embed(self, images: Tensor) -> Tensor:
        """Z_0: images (B, C, H, W) → (B, p + N, d)."""
        family = self.kind.family
        x = self.tower.embeddings(images.to(part(self.tower, family.proj).weight.dtype))
        return x if family.pre_norm is None else getattr(self.tower, family.pre_norm)(x)

    def normed(self, block: nn.Module, x: Tensor) -> Tensor:
        """LN1(Z): (B, n, d) → (B, n, d)."""
        return self.math.normed(block, x)

    def attention(self, block: nn.Module, x: Tensor, n: int) -> Tensor:
        """P_l^h of the first `n` tokens: (B, n_in, d) → (B, H, n, n_in)."""
        return self.math.attention_map(block, x, n)

    def features(self, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """What the classifier reads, tokens side by side where it reads several: (B, n, d) → (B, d) or (B, 2 d)."""
        norm, readout, first = getattr(self.tower, self.kind.family.norm), self.info.readout, self.info.prefix_tokens
        if readout in ("class", "class+distillation"):
            return norm(tokens[:, : 1 if readout == "class" else 2]).flatten(1)
        patches = tokens[:, first:]
        patches = norm(patches) if self.kind.family.norm_patches else patches
        weight = None if weight is None else weight[:, first:].to(patches.dtype)
        if readout == "attention-pool":
            return _pooled(self.tower.head, patches, weight)
        if weight is None:
            mean = patches.mean(dim=1)
        else:
            mean = (patches * weight[..., None]).sum(dim=1) / weight.sum(dim=1, keepdim=True)
        return mean if readout == "mean" else torch.cat([norm(tokens[:, 0]), mean], dim=1)

    def logits(self, tokens: Tensor) -> Tensor:
        """The host's answer: logits, embedding or pooled output, (B, n, d) → (B, classes)."""
        read, heads = self.features(tokens), self.classifiers
        if self.kind.heads == ("pooler",):
            return heads[0](read[:, None]) if heads else read
        answers = [head(own) for head, own in zip(heads, read.chunk(max(1, len(heads)), dim=1), strict=False)]
        return sum(answers) / len(answers) if answers else read

    def readout_moment(self, tokens: Tensor) -> Tensor:
        """R of the impact recursion: (B, n, d) → (B, n, n). A row for each token read, for the mean, for each head of
        a pool; those of a pool share one."""
        batch, n, _ = tokens.shape
        readout, first = self.info.readout, self.info.prefix_tokens
        if readout == "attention-pool":
            norm, head = getattr(self.tower, self.kind.family.norm), self.tower.head
            rows = _pool_rows(head, norm(tokens))
            return rows.transpose(1, 2) @ rows / rows.shape[1]
        rows = torch.zeros(2, n, device=tokens.device)
        if readout != "mean":
            rows[0, 0] = 1
        if readout == "class+distillation":
            rows[1, 1] = 1
        elif readout != "class":
            rows[1, first:] = 1 / (n - first)
        return (rows.T @ rows).expand(batch, n, n)

    def slimmed_(self, blocks: Sequence[nn.Module]) -> nn.Module:
        """Put slim blocks in place of the model's own and return the model."""
        where, _, name = self.kind.family.blocks.rpartition(".")
        setattr(part(self.tower, where), name, nn.ModuleList(blocks))
        return self.model

    def spec(self) -> Mapping[str, Any]:
        """Settings from which `hf_spec.rebuild_hf` makes the host again."""
        return describe_hf(self.model)


def answer_of(output: Any) -> Tensor:
    """A model's answer: what timm's models return, and the same of the outputs of transformers' models."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "image_embeds", "pooler_output"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    return output.last_hidden_state[:, 0]  # a ViT without its pooler


def _pooled(head: Any, x: Tensor, weight: Tensor | None) -> Tensor:
    """SigLIP's attention pool, tokens counting by their weight (B, n): (B, n, d) → (B, d)."""
    if weight is None:
        return head(x)
    bias = weight.log()[:, None, None, :].expand(-1, head.attention.num_heads, -1, -1).flatten(0, 1)  # (B · H, 1, n)
    read = head.attention(head.probe.expand(len(x), -1, -1), x, x, attn_mask=bias, need_weights=False)[0]
    return (read + head.mlp(head.layernorm(read)))[:, 0]


def _pool_rows(head: Any, x: Tensor) -> Tensor:
    """The pool's attention: (B, n, d) → (B, H, n), rows sum to 1."""
    probe = head.probe.expand(len(x), -1, -1)
    return head.attention(probe, x, x, average_attn_weights=False)[1][:, :, 0].float()


def _info(model: Any) -> HostInfo:
    kind, tower, settings = kind_of(model), tower_of(model), hf_data_settings(model)
    family, config = kind.family, tower.config
    channels, *size = settings["input_size"]
    proj = part(tower, family.proj)
    grid = tuple(side // patch for side, patch in zip(size, proj.kernel_size, strict=True))
    patches, heads = grid[0] * grid[1], HFViT.classifiers_of(model)
    pool_macs, per_token = _pool_macs(getattr(tower, "head", None))
    linear = [layer for head in heads for layer in head.modules() if isinstance(layer, nn.Linear)]
    return HostInfo(
        name=settings["architecture"],
        family=f"transformers {type(model).__name__}",
        depth=len(part(tower, family.blocks)),
        width=config.hidden_size,
        heads=config.num_attention_heads,
        prefix_tokens=family.prefix + getattr(config, "num_register_tokens", 0),
        patches=patches,
        grid=(grid[0], grid[1]),
        readout=kind.readout,
        image_size=(size[0], size[1]),
        channels=channels,
        classes=linear[-1].out_features if linear else config.hidden_size,
        parameters=host_parameters(model, part(tower, family.blocks)),
        blocks=tuple(_block_shape(block, family.names.attn) for block in part(tower, family.blocks)),
        embed_macs=patches * proj.weight.numel(),
        head_macs=sum(linear_macs(head) for head in heads) + pool_macs,
        head_macs_per_token=per_token,
        head_reads_prefix=False,
    )


def _block_shape(block: Any, attn: str) -> BlockShape:
    q = getattr(block, attn).q_proj
    return BlockShape(width=q.in_features, attention_width=q.out_features, mlp_macs=linear_macs(block.mlp))


def _pool_macs(head: Any) -> tuple[int, int]:
    """(fixed, per token read) of SigLIP's attention pool, which runs even where a classifier reads the mean."""
    if head is None:
        return 0, 0
    width = head.attention.embed_dim
    return width**2 + linear_macs(head), 2 * width**2 + 2 * width
