"""The MLP's kernel against torch's layers; interpreted where there is no GPU."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from timm.layers import Mlp, SwiGLU
from torch import nn

from kernel_inputs import DEVICE, drawn
from patchslim.hosts import block
from patchslim.kernels import mlp

pytest.importorskip("triton")


@pytest.fixture
def launching(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs as if a CUDA graph were recorded."""
    monkeypatch.setattr(mlp, "worth_launching", lambda kernel: True)


@pytest.mark.parametrize(("rows", "deep", "wide"), [(3, 24, 40), (130, 96, 200), (70, 64, 64)])
def test_a_linear_layer_and_gelu(monkeypatch: pytest.MonkeyPatch, rows: int, deep: int, wide: int) -> None:
    normal = drawn(rows)
    made = 2 * normal(2, rows, deep), 3 * normal(wide, deep) / deep**0.5, normal(wide)
    x, weight, bias = (own.half() for own in made)
    library = mlp.linear_gelu(x, weight, bias)
    monkeypatch.setattr(mlp, "worth_launching", lambda kernel: True)
    found = mlp.linear_gelu(x, weight, bias)
    wanted = F.gelu(F.linear(x.double(), weight.double(), bias.double()))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-6)  # half precision has 11 bits
    torch.testing.assert_close(library, found, rtol=2e-3, atol=1e-4)


@pytest.mark.usefixtures("launching")
def test_an_mlp_with_that_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers, tokens = Mlp(32, 64).to(DEVICE), 2 * drawn(1)(3, 5, 32)
    wanted = layers.double()(tokens.double())
    monkeypatch.setattr(block, "gelu_kernel_for", lambda y, weight: True)
    with torch.no_grad():
        torch.testing.assert_close(block.fed(layers.half(), tokens.half()).double(), wanted, rtol=0, atol=2e-3)


OTHERS = {
    "tanh": Mlp(8, 16, act_layer=partial(nn.GELU, approximate="tanh")),
    "relu": Mlp(8, 16, act_layer=nn.ReLU),
    "no bias": Mlp(8, 16, bias=False),
    "norm": Mlp(8, 16, norm_layer=nn.LayerNorm),
    "dropout": Mlp(8, 16, drop=0.1).train(),
    "gated": SwiGLU(8, 16),
    "other": nn.Sequential(),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_only_plain_mlps_have_it(other: nn.Module) -> None:
    assert not block.plain_mlp(other)
    assert block.plain_mlp(Mlp(8, 16, drop=0.1).eval())
