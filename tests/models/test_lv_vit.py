"""LV-ViT: the official code's logits for the same weights, its two readouts, its residual scale, its names.

`golden.json` was made once with the official code (github.com/zihangJiang/TokenLabeling, `LV_ViT(img_size=64,
patch_size=16, p_emb='4_2', skip_lam=2, return_dense=True, mix_token=True, embed_dim=32, depth=3, num_heads=4,
mlp_ratio=2, num_classes=5)`), its weights and two pictures given by `formula.py`, in float32; for the class head alone
`return_dense` was switched off after that.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import patchslim as ps
from models.formula import fill_, pictures
from patchslim.models import LVViT
from patchslim.models.lv_vit import CLASS_ONLY, VARIANTS

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
SMALL: dict[str, Any] = {"img_size": 64, "embed_dim": 32, "num_heads": 4, "mlp_ratio": 2.0, "skip_lam": 2.0}


@pytest.mark.parametrize("readout", ["class+auxiliary", "class"])
@torch.no_grad()
def test_the_official_codes_logits(readout: Any) -> None:
    model = LVViT(readout=readout, depth=3, num_classes=5, **SMALL).eval()
    fill_(model)
    torch.testing.assert_close(model(pictures(2, 64)), torch.tensor(GOLDEN[f"lv {readout}"]), atol=1e-5, rtol=0)


@torch.no_grad()
def test_both_readouts_by_hand() -> None:
    torch.manual_seed(0)
    model = LVViT(depth=2, num_classes=5, **SMALL).eval()
    images = torch.randn(2, 3, 64, 64)
    tokens = model.forward_features(images)
    own, patches = model.forward_heads(tokens)
    assert patches.shape == (2, 16, 5)
    best = torch.stack([torch.stack([max(image[:, c]) for c in range(5)]) for image in patches])
    assert torch.equal(model(images), own + 0.5 * best)
    model.readout = "class"
    assert torch.equal(model(images), model.head(tokens[:, 0]))


@torch.no_grad()
def test_the_residual_scale_divides_what_blocks_add() -> None:
    torch.manual_seed(0)
    model: Any = LVViT(depth=1, **SMALL).eval()
    block, x = model.blocks[0], torch.randn(2, 17, 32)
    middle = x + block.attn(block.norm1(x)) / 2
    assert torch.allclose(block(x), middle + block.mlp(block.norm2(middle)) / 2, atol=1e-6)
    plain: Any = LVViT(depth=1, **SMALL | {"skip_lam": 1.0})
    assert isinstance(plain.blocks[0].ls1, torch.nn.Identity)


def test_names_are_the_official_ones() -> None:
    model = LVViT(depth=1, **SMALL)
    block = ["attn.qkv.weight", *_pairs("norm1", "norm2", "attn.proj", "mlp.fc1", "mlp.fc2")]
    counted = ("running_mean", "running_var", "num_batches_tracked")
    stem = [f"bn{i}.{name}" for i in (1, 2, 3) for name in ("weight", "bias", *counted)]
    stem += [*(f"conv{i}.weight" for i in (1, 2, 3)), *_pairs("proj")]
    names = [f"patch_embed.{name}" for name in stem] + [f"blocks.0.{name}" for name in block]
    assert sorted(model.state_dict()) == sorted([*names, "cls_token", "pos_embed", *_pairs("norm", "head", "aux_head")])


def _pairs(*parts: str) -> list[str]:
    return [f"{part}.{kind}" for part in parts for kind in ("weight", "bias")]


@torch.no_grad()
def test_image_sizes_and_classes() -> None:
    model = LVViT(depth=1, **SMALL | {"img_size": (48, 80)}).eval()
    assert model.stem.grid_size == (3, 5)
    assert model(torch.randn(1, 3, 48, 80)).shape == (1, 1000)
    model.reset_classifier(3)
    assert model(torch.randn(1, 3, 48, 80)).shape == (1, 3)
    assert [head.out_features for head in (model.get_classifier(), model.aux_head)] == [3, 3]
    assert LVViT(depth=1, **SMALL, num_classes=0).eval()(torch.randn(1, 3, 64, 64)).shape == (1, 32)
    assert LVViT(depth=1, **SMALL | {"img_size": 70}).stem.grid_size == (4, 4)  # the rest is left out
    for settings, words in (
        ({"img_size": 31}, "multiples of 16"),
        ({"patch_size": 7}, "even side"),
        ({"readout": "mean"}, "no readout 'mean'"),
    ):
        with pytest.raises(ps.UnsupportedModel, match=words):
            LVViT(**settings)


def test_timm_knows_them() -> None:
    assert {*VARIANTS, *CLASS_ONLY} == set(timm.list_models("lvvit*"))
    with torch.device("meta"):
        both, one = timm.create_model("lvvit_m", img_size=384), timm.create_model("lvvit_m_cls")
    assert (ps.inspect(both).readout, ps.inspect(both).patches) == ("class+auxiliary", 576)
    assert ps.inspect(one).readout == "class"
    assert both.pretrained_cfg["crop_pct"] == one.pretrained_cfg["crop_pct"] == 1.0
