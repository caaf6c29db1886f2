"""The patch embedding as a matrix product gives timm's own numbers, and steps back where it would not."""

from typing import Any

import pytest
import torch
from timm.layers import LayerNorm, PatchEmbed

from patchslim.hosts.timm_embed import MatmulPatchEmbed, matmul_embed, with_matmul_embed
from small import make_host, make_images, relative


@pytest.mark.parametrize(
    "settings",
    [
        {"img_size": 32, "patch_size": 8},
        {"img_size": (24, 40), "patch_size": (4, 8)},
        {"img_size": 37, "patch_size": 8, "bias": False},
        {"img_size": 32, "patch_size": 16, "in_chans": 1, "norm_layer": LayerNorm},
    ],
)
@torch.no_grad()
def test_equals_the_convolution(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    embed = PatchEmbed(embed_dim=20, **settings)
    fast = matmul_embed(embed)
    assert isinstance(fast, MatmulPatchEmbed)
    images = torch.randn(2, settings.get("in_chans", 3), *embed.img_size)
    assert relative(fast(images), embed(images)) < 1e-6
    assert list(fast.state_dict()) == list(embed.state_dict())


@pytest.mark.parametrize("settings", [{"flatten": False}, {"output_fmt": "NHWC"}, {"dynamic_img_pad": True}])
def test_other_embeddings_stay(settings: dict[str, Any]) -> None:
    embed = PatchEmbed(img_size=32, patch_size=8, embed_dim=20, **settings)
    assert matmul_embed(embed) is embed


def test_overlapping_patches_stay() -> None:
    embed = PatchEmbed(img_size=32, patch_size=8, embed_dim=20)
    embed.proj = torch.nn.Conv2d(3, 20, 8, stride=4)
    assert matmul_embed(embed) is embed


def test_a_host_with_it_is_the_same_network_and_another_object() -> None:
    host = make_host()
    faster: Any = with_matmul_embed(host)
    assert isinstance(faster.patch_embed, MatmulPatchEmbed)
    assert relative(faster(make_images()), host(make_images())) < 1e-5
    assert not any(isinstance(module, MatmulPatchEmbed) for module in host.modules())
