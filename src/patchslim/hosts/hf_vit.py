"""Models of transformers as hosts: ViT, DeiT, DINOv2 (with registers), CLIP's and SigLIP's vision towers."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.base import BlockShape, Host, HostInfo, weighted_mean
from patchslim.hosts.hf_data import hf_data_settings, pair
from patchslim.hosts.hf_parts import NAMELESS, attention_width, check_hf, kind_of, tower_of
from patchslim.hosts.hf_save import saving_the_host_
from patchslim.hosts.shells import host_parameters
from patchslim.models.stem_vit import linear_macs


class HFViT(Host):
    """A transformers model seen as a patchslim host."""

    check = staticmethod(check_hf)

    def __init__(self, model: nn.Module, info: HostInfo | None = None) -> None:
        self.kind = kind_of(model)
        self.family, self.tower = self.kind.family, tower_of(model)
        self.norm, self.proj = (self.tower.get_submodule(name) for name in (self.family.norm, self.family.proj))
        blocks = f"{self.kind.tower}.{self.family.blocks}".removeprefix(".")
        super().__init__(model, blocks, self.family.names, info)

    @property
    def embedding(self) -> nn.Module:
        """Patches, positions and what comes before them."""
        return self.tower.embeddings

    @staticmethod
    def classifiers_of(model: nn.Module) -> Sequence[nn.Module]:
        """What turns features into the output: classifiers, a projection, ViT's pooler where it is there."""
        found = [getattr(model, name) for name in kind_of(model).heads]
        return [head for head in found if head is not None]

    def described(self) -> HostInfo:
        """The description of a host, or of the host a slim model was made from."""
        config, settings = self.tower.config, hf_data_settings(self.model)
        channels, height, width = settings["input_size"]
        patch = pair(config.patch_size)
        rows, columns = height // patch[0], width // patch[1]
        pool_macs, per_token = _pool_macs(getattr(self.tower, "head", None))
        heads = self.classifiers
        linear = [layer for head in heads for layer in head.modules() if isinstance(layer, nn.Linear)]
        return HostInfo(
            name=settings["architecture"],
            family=f"transformers {type(self.model).__name__}",
            depth=len(self.blocks),
            width=config.hidden_size,
            heads=config.num_attention_heads,
            prefix_tokens=self.family.prefix + getattr(config, "num_register_tokens", 0),
            patches=rows * columns,
            grid=(rows, columns),
            readout=self.kind.readout,
            image_size=(height, width),
            channels=channels,
            classes=linear[-1].out_features if linear else config.hidden_size,
            parameters=host_parameters(self.model, self.blocks),
            blocks=tuple(self._shape(block) for block in self.blocks),
            embed_macs=rows * columns * config.hidden_size * channels * math.prod(patch),
            head_macs=sum(map(linear_macs, heads)) + pool_macs,
            head_macs_per_token=per_token,
        )

    def _shape(self, block: Any) -> BlockShape:
        names = self.family.names
        inner = attention_width(getattr(block, names.attn), names.attention.heads)
        return BlockShape(self.tower.config.hidden_size, inner, linear_macs(block.mlp))

    def slimmed_(self, blocks: Sequence[nn.Module]) -> nn.Module:
        """Put slim blocks in place of the model's own and return the model."""
        return saving_the_host_(super().slimmed_(blocks))

    def embed(self, images: Tensor) -> Tensor:
        """Z_0: images (B, C, H, W) → (B, p + N, d)."""
        x = self.tower.embeddings(images.to(self.proj.weight.dtype))
        return x if self.family.pre_norm is None else getattr(self.tower, self.family.pre_norm)(x)

    def features(self, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """What the classifier reads, tokens side by side where it reads several: (B, n, d) → (B, d) or (B, 2 d)."""
        readout, first = self.info.readout, self.info.prefix_tokens
        if readout in ("class", "class+distillation"):
            return self.norm(tokens[:, : 1 if readout == "class" else 2]).flatten(1)
        patches = tokens[:, first:]
        patches = self.norm(patches) if self.family.norm_patches else patches
        weight = None if weight is None else weight[:, first:].to(patches.dtype)
        if readout == "attention-pool":
            return _pooled(self.tower.head, patches, weight)
        mean = patches.mean(dim=1) if weight is None else weighted_mean(patches, weight)
        return mean if readout == "mean" else torch.cat([self.norm(tokens[:, 0]), mean], dim=1)

    def logits(self, tokens: Tensor) -> Tensor:
        """The host's answer: logits, embedding or pooled output, (B, n, d) → (B, classes)."""
        read, heads = self.features(tokens), self.classifiers
        if self.kind.heads == ("pooler",):
            return heads[0](read[:, None]) if heads else read
        answers = [head(own) for head, own in zip(heads, read.chunk(max(1, len(heads)), dim=1), strict=False)]
        return sum(answers) / len(answers) if answers else read

    def pool_rows(self, tokens: Tensor) -> Tensor:
        """The pool's attention: (B, n, d) → (B, H, n), rows sum to 1."""
        x, head = self.norm(tokens), self.tower.head
        probe = head.probe.expand(len(x), -1, -1)
        return head.attention(probe, x, x, average_attn_weights=False)[1][:, :, 0].float()


def answer_of(output: Any) -> Tensor:
    """A model's answer: what timm's models return, and the same of the outputs of transformers' models."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple):
        raise UnsupportedModel(NAMELESS)
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


def _pool_macs(head: Any) -> tuple[int, int]:
    """(fixed, per token read) of SigLIP's attention pool, which runs even where a classifier reads the mean."""
    if head is None:
        return 0, 0
    width = head.attention.embed_dim
    return width**2 + linear_macs(head), 2 * width**2 + 2 * width
