"""The patch embedding as a reshape and one matrix product: the same numbers as timm's strided convolution, sooner."""

from typing import Any, NoReturn

import torch.nn.functional as F
from timm.layers import Format, PatchEmbed
from timm.models import register_notrace_module
from torch import Tensor, nn

from patchslim.errors import PlanError
from patchslim.hosts.base import OneSize
from patchslim.hosts.parts import copied, readable
from patchslim.hosts.shells import recast


@register_notrace_module  # graphs of torch.fx call it as it is
class MatmulPatchEmbed(PatchEmbed):  # type: ignore[misc]
    """Stands in for a timm PatchEmbed whose patches do not overlap, with its settings and parts."""

    tokens_leave = False  # whether the blocks behind it compute fewer tokens

    def host_embed(self) -> nn.Module:
        """The embedding that this one stands in for, with the parts of this one."""
        return recast(self, PatchEmbed)

    def set_input_size(self, *args: Any, **options: Any) -> NoReturn:
        """Raise PlanError."""
        raise PlanError("A plan holds for one image size; set the size of the host and slim that.")

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """The grid, for whoever puts a block's tokens back on it; PlanError where some are gone."""
        if self.tokens_leave:
            raise PlanError(
                "A slim model has no features on the grid of patches: some are gone; ask the host for them."
            )
        return super().dynamic_feat_size(img_size)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, N, d), patches row by row."""
        if not readable(self.proj, nn.Conv2d):
            return super().forward(images)
        batch, channels = images.shape[:2]
        (rows, columns), (height, width) = self.grid_size, self.patch_size
        images = images[:, :, : rows * height, : columns * width]  # a last part of a patch is left out, as timm does
        x = images.reshape(batch, channels, rows, height, columns, width).permute(0, 2, 4, 1, 3, 5)
        x = F.linear(
            x.reshape(batch, rows * columns, channels * height * width), self.proj.weight.flatten(1), self.proj.bias
        )
        return self.norm(x)


def matmul_embed(embed: Any) -> nn.Module:
    """The faster stand-in where it is the same thing, else the embedding itself."""
    if type(embed) is not PatchEmbed:
        return embed
    plain = embed.flatten and embed.output_fmt == Format.NCHW and not embed.dynamic_img_pad
    proj = embed.proj
    fits = proj.kernel_size == proj.stride == tuple(embed.patch_size) and proj.groups == 1
    unpadded = proj.padding in ((0, 0), "valid") and tuple(proj.dilation) == (1, 1)
    same = type(proj) is nn.Conv2d and plain and fits and unpadded
    return recast(embed, MatmulPatchEmbed) if same else embed


def with_matmul_embed(model: nn.Module) -> nn.Module:
    """A copy of a host with the patch embedding of its slim models; where none is the same thing, with its own."""
    faster: Any = put_matmul_embed_(copied(model))
    if isinstance(getattr(faster, "patch_embed", None), MatmulPatchEmbed):
        faster.patch_embed.register_forward_pre_hook(OneSize(*faster.patch_embed.img_size))
    return faster


def put_matmul_embed_(model: Any) -> nn.Module:
    """The model itself, with the faster stand-in where it is the same thing."""
    if hasattr(model, "patch_embed"):
        model.patch_embed = matmul_embed(model.patch_embed)
    return model
