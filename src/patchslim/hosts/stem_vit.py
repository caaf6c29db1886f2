"""T2T-ViT and LV-ViT as hosts: timm's blocks behind a stem of their own. The stem is counted, never slimmed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.base import HostInfo
from patchslim.hosts.shells import host_parameters
from patchslim.hosts.stem_spec import STEM_MODELS, describe_stem
from patchslim.hosts.timm_check import check_blocks
from patchslim.hosts.timm_host import TimmHost
from patchslim.hosts.timm_vit import block_shape, linear_macs, model_name
from patchslim.models import LVViT
from patchslim.models.lv_vit import AUXILIARY


class StemHost(TimmHost):
    """A T2T-ViT or an LV-ViT seen as a patchslim host."""

    heads = ("head", "aux_head")  # the auxiliary one is LV-ViT's

    def __init__(self, model: nn.Module) -> None:
        if type(model) not in STEM_MODELS.values():
            raise UnsupportedModel(
                f"{type(model).__name__} can't be slimmed: it changes {type(model).__mro__[1].__name__}."
            )
        check_blocks(model)
        super().__init__(model, _info(model))

    @staticmethod
    def info_of(model: nn.Module) -> HostInfo:
        """The description of a host, or of the host a slim model was made from: nothing is checked."""
        return _info(model)

    def embed(self, images: Tensor) -> Tensor:
        """Z_0: images (B, C, H, W) → (B, 1 + N, d)."""
        return self.model.embed(images)

    def features(self, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """What the output is made of: the class feature (B, d); where the auxiliary head is read, the logits, for its
        maximum takes another patch for every class: (B, n, d) → (B, classes). `weight` (B, n) as in `expected_max`."""
        if self.info.readout == "class":
            return self.model.forward_head(self.model.norm(tokens), pre_logits=True)
        if weight is None:
            return self.logits(tokens)
        own, patches = self.model.forward_heads(self.model.norm(tokens))
        return own + AUXILIARY * expected_max(patches, weight[:, 1:])

    @property
    def has_patch_head(self) -> bool:
        """Whether there is an auxiliary head."""
        return isinstance(self.model, LVViT)

    def patch_logits(self, tokens: Tensor) -> Tensor:
        """What the auxiliary head says of every patch: (B, 1 + n, d) → (B, n, classes)."""
        return self.model.forward_heads(self.model.norm(tokens))[1]

    def readout_moment(self, tokens: Tensor) -> Tensor:
        """R of the impact recursion: (B, n, d) → (B, n, n), a diagonal: 1 for the class token and, where the auxiliary
        head is read, its weight squared times the share of classes whose maximum a patch is."""
        read = torch.zeros(tokens.shape[:2], device=tokens.device)
        read[:, 0] = 1
        if self.info.readout == "class+auxiliary":
            patches = self.patch_logits(tokens)
            best = torch.zeros_like(patches).scatter(1, patches.argmax(dim=1, keepdim=True), 1.0)
            read[:, 1:] = AUXILIARY**2 * best.mean(dim=2)
        return torch.diag_embed(read)

    def spec(self) -> Mapping[str, Any]:
        """Settings from which `stem_spec.rebuild_stem` makes the host again."""
        return describe_stem(self.model)


def expected_max(values: Tensor, weight: Tensor) -> Tensor:
    """The mean of the largest value when patch i is there with probability weight_i: (B, n, C), (B, n) → (B, C).

    With weights of 0 and 1 that is the maximum over the patches that are there; the derivative in a weight is what the
    patch's absence would change. Where none may be there, the smallest value counts.
    """
    ranked, order = values.sort(dim=1, descending=True)
    there = weight.to(values.dtype)[:, :, None].expand_as(values).gather(1, order)
    there = torch.cat([there[:, :-1], torch.ones_like(there[:, :1])], dim=1)
    missed = torch.cat([torch.ones_like(there[:, :1]), (1 - there[:, :-1]).cumprod(dim=1)], dim=1)
    return (ranked * there * missed).sum(dim=1)


def _info(model: Any) -> HostInfo:
    stem = model.stem
    lv = isinstance(model, LVViT)
    reads_all = lv and model.readout == "class+auxiliary"
    return HostInfo(
        name=model_name(model),
        family=type(model).__name__,
        depth=len(model.blocks),
        width=model.embed_dim,
        heads=model.blocks[0].attn.num_heads,
        prefix_tokens=model.num_prefix_tokens,
        patches=stem.num_patches,
        grid=stem.grid_size,
        readout="class+auxiliary" if reads_all else "class",
        image_size=stem.img_size,
        channels=model.in_chans,
        classes=model.num_classes,
        parameters=host_parameters(model, model.blocks) + sum(table.numel() for table in model.fixed()),
        blocks=tuple(block_shape(block) for block in model.blocks),
        embed_macs=stem.macs(),
        head_macs=linear_macs(model.head),
        head_macs_per_token=linear_macs(model.aux_head) if reads_all else 0,
        head_reads_prefix=False,
    )
