"""T2T-ViT: the official code's logits for the same weights, its stem piece by piece, its names.

`golden.json` was made once with the official code (github.com/yitu-opensource/T2T-ViT, `T2T_ViT(img_size=64,
tokens_type=…, token_dim=8, embed_dim=32, depth=3, num_heads=4, mlp_ratio=2, num_classes=5)`), its weights and two
pictures given by `formula.py`, in float32.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import set_fused_attn

import patchslim as ps
from models.formula import fill_, pictures
from patchslim.models import T2TViT
from patchslim.models.t2t_vit import (
    SPLITS,
    VARIANTS,
    TokenPerformer,
    TokensToToken,
    TokenTransformer,
    sinusoid,
    soft_split,
)

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
SMALL: dict[str, Any] = {"img_size": 64, "token_dim": 8, "embed_dim": 32, "num_heads": 4, "mlp_ratio": 2.0}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("tokens_type", ["performer", "transformer"])
@torch.no_grad()
def test_the_official_codes_logits(tokens_type: Any, fused: bool) -> None:
    set_fused_attn(fused)
    try:
        model = T2TViT(tokens_type=tokens_type, depth=3, num_classes=5, **SMALL).eval()
    finally:
        set_fused_attn(True)
    fill_(model)
    torch.testing.assert_close(model(pictures(2, 64)), torch.tensor(GOLDEN[f"t2t {tokens_type}"]), atol=1e-5, rtol=0)


@settings(max_examples=40, deadline=None)
@given(split=st.sampled_from([*SPLITS, (2, 1, 0), (4, 2, 1)]), height=st.integers(8, 23), width=st.integers(8, 23))
def test_a_soft_split_is_an_unfold(split: tuple[int, int, int], height: int, width: int) -> None:
    kernel, stride, padding = split
    x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))
    expected = F.unfold(x, kernel, stride=stride, padding=padding).transpose(1, 2)
    assert torch.equal(soft_split(x, *split), expected)


@torch.no_grad()
def test_a_performer_is_attention_with_a_kernel_token_by_token() -> None:
    torch.manual_seed(0)
    layer = TokenPerformer(12, 6).eval()
    x = torch.randn(1, 5, 12)
    k, q, v = layer.kqv(layer.norm1(x))[0].double().split(6, dim=1)
    w = layer.w.double()

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Its mean over all w is exp(a·b)."""
        return ((w @ (a + b)) - (a @ a + b @ b) / 2).exp().mean()

    weights = torch.stack([torch.stack([kernel(query, key) for key in k]) for query in q])
    mixed = (weights / weights.sum(dim=1, keepdim=True)) @ v
    own = v.float() + layer.proj(mixed.float())
    expected = own + layer.mlp(layer.norm2(own))
    torch.testing.assert_close(layer(x)[0], expected, atol=1e-5, rtol=1e-4)
    assert torch.allclose(layer.w @ layer.w.T, 3 * torch.eye(3), atol=1e-5)  # orthogonal, of squared length m


def test_positions_are_the_sinusoid_and_never_learn() -> None:
    table = sinusoid(5, 6)
    expected = [[(math.sin, math.cos)[j % 2](i / 10000 ** (j // 2 * 2 / 6)) for j in range(6)] for i in range(5)]
    assert torch.allclose(table, torch.tensor([expected]))
    model = T2TViT(depth=1, **SMALL)
    learnt = dict(model.named_parameters())
    assert "pos_embed" in model.state_dict()
    assert "tokens_to_token.attention1.w" in model.state_dict()
    assert not [name for name in learnt if name == "pos_embed" or name.endswith(".w")]


@pytest.mark.parametrize(("tokens_type", "layer"), [("performer", TokenPerformer), ("transformer", TokenTransformer)])
def test_names_are_the_official_ones(tokens_type: Any, layer: type) -> None:
    model: Any = T2TViT(tokens_type=tokens_type, depth=1, **SMALL)
    attention = {
        "performer": ["kqv.weight", "kqv.bias", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias", "w"],
        "transformer": ["attn.qkv.weight", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"],
    }[tokens_type]
    proj = "proj" if tokens_type == "performer" else "attn.proj"
    attention += [f"{part}.{kind}" for part in ("norm1", "norm2", proj) for kind in ("weight", "bias")]
    block = [
        "attn.qkv.weight",
        *(
            f"{part}.{kind}"
            for part in ("norm1", "norm2", "attn.proj", "mlp.fc1", "mlp.fc2")
            for kind in ("weight", "bias")
        ),
    ]
    names = [f"tokens_to_token.attention{stage}.{name}" for stage in (1, 2) for name in attention]
    names += ["tokens_to_token.project.weight", "tokens_to_token.project.bias", "cls_token", "pos_embed"]
    names += [f"blocks.0.{name}" for name in block] + ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    assert sorted(model.state_dict()) == sorted(names)
    assert isinstance(model.tokens_to_token.attention1, layer)


@torch.no_grad()
def test_image_sizes() -> None:
    model = T2TViT(depth=1, **SMALL | {"img_size": (48, 80)}).eval()
    assert model.stem.grid_size == (3, 5)
    assert model(torch.randn(1, 3, 48, 80)).shape == (1, 1000)
    with pytest.raises(ps.DataError, match="48×80 pixels and got 80×48"):
        model(torch.randn(1, 3, 80, 48))
    with pytest.raises(ps.UnsupportedModel, match="multiples of 16"):
        T2TViT(img_size=230)
    with pytest.raises(ps.UnsupportedModel, match="no tokens_type 'convolution'"):
        T2TViT(tokens_type="convolution")  # type: ignore[arg-type]


def test_half_precision_and_training() -> None:
    model = T2TViT(depth=2, drop_path_rate=0.2, **SMALL)
    images = torch.randn(2, 3, 64, 64)
    model(images).square().mean().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    model.eval()
    exact = model(images).detach()
    rough = model.bfloat16()(images.bfloat16()).detach().float()
    assert float((rough - exact).norm() / exact.norm()) < 0.1


def test_timm_knows_them() -> None:
    assert len(VARIANTS) == 9
    assert set(VARIANTS) <= set(timm.list_models("t2t*"))
    with torch.device("meta"):
        model = timm.create_model("t2t_vit_t_14", img_size=384, num_classes=10)
    assert isinstance(model.tokens_to_token, TokensToToken)
    assert (ps.inspect(model).patches, ps.inspect(model).classes) == (576, 10)
    assert model.pretrained_cfg["crop_pct"] == 0.9
