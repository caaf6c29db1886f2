"""Kernels give the same in every tile that is tried; interpreted where there is no GPU."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
import kernel_tiles
from patchslim.hosts.attention import sized
from patchslim.slim.merge import unit_keys

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


@pytest.mark.parametrize("tile", kernel_tiles.GELU)
def test_a_linear_layer_and_gelu(tile: tuple[int, ...]) -> None:
    x, weight, bias = noise(20, 72).half(), noise(40, 72).half() / 8, noise(40).half()
    out = torch.empty(20, 40, device=DEVICE).half()
    kernel_tiles.linear_gelu(tile, x, weight, bias, out)
    wanted = kernel_tiles.by_library(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(out.double(), wanted, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("tile", {*kernel_tiles.ATTEND, *kernel_tiles.ATTEND_FEW})
def test_attention(tile: tuple[int, ...]) -> None:
    q, k, v = (part.transpose(1, 2) for part in noise(1, 40, 3, 2, kernel_tiles.WIDTH).unbind(2))
    q, size, out = q[:, :, :21], noise(1, 40).abs() + 1, noise(1, 21, 2, kernel_tiles.WIDTH).transpose(1, 2)
    kernel_tiles.attend(tile, q, k, v, size, out)
    wanted = sized(size)(q, k, v, scale=kernel_tiles.SCALE, dropout=0.0, fused=False)
    torch.testing.assert_close(out, wanted, rtol=1e-2 if DEVICE == "cuda" else 1e-4, atol=1e-2)


@pytest.mark.parametrize("tile", kernel_tiles.NEAREST)
def test_pairs(tile: tuple[int, ...]) -> None:
    k = noise(2, 43, 2, kernel_tiles.WIDTH).transpose(1, 2)
    alike, which = kernel_tiles.nearest(tile, k)
    keys = unit_keys(k, 1)
    most, place = (keys[:, ::2] @ keys[:, 1::2].transpose(1, 2)).max(dim=2)
    found, part = alike.max(dim=1)
    torch.testing.assert_close(found, most, rtol=1e-2 if DEVICE == "cuda" else 1e-5, atol=1e-5)
    assert (which.gather(1, part[:, None])[:, 0] == place).all()
