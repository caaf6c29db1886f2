"""T2T-ViT and LV-ViT as hosts: every way of slimming, against the host and the masked reference; MACs; run folders."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import set_fused_attn
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from patchslim.hosts import open_host, spec_of, with_matmul_embed
from patchslim.hosts.stem_vit import expected_max
from patchslim.models import LVViT
from small import STEMS, WAYS, make_host, make_images, plan_for, relative

ALL = ["lv", *STEMS]


@pytest.mark.parametrize("kind", ALL)
@torch.no_grad()
def test_everything_kept_gives_the_hosts_logits(kind: str) -> None:
    model, images = make_host(kind), make_images()
    slim: Any = ps.apply(model, ps.full_plan(model))
    assert relative(slim(images), model(images)) <= 1e-5
    assert relative(slim.forward_features(images), model.forward_features(images)) <= 1e-5  # type: ignore[operator]
    same = with_matmul_embed(model)
    assert torch.equal(same(images), model(images))  # their stems stay as they are


@pytest.mark.filterwarnings("ignore:There is no packed attention")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", list(STEMS))
@torch.no_grad()
def test_every_way_equals_the_masked_reference(kind: str, way: str) -> None:
    model, images = make_host(kind), make_images(2)
    plan, weights = plan_for(model, way)
    slim = ps.apply(model, plan, weights)
    assert relative(slim(images), ps.masked_logits(model, plan, images, weights)) <= 1e-5
    assert relative(slim(images), model(images)) > 1e-4


@pytest.mark.filterwarnings("ignore:There is no packed attention")
@pytest.mark.parametrize("kind", list(STEMS))
@torch.no_grad()
def test_macs_equal_the_counter_in_every_way(kind: str) -> None:
    set_fused_attn(False)
    try:
        model, image = make_host(kind), make_images(1)
    finally:
        set_fused_attn(True)
    for way in ("", *WAYS):
        slim = ps.apply(model, *(plan_for(model, way) if way else (ps.full_plan(model), {})))
        with FlopCounterMode(display=False) as counter:
            slim(image)
        assert counter.get_total_flops() == 2 * int(ps.image_macs(slim, image)), way


@pytest.mark.parametrize("kind", ALL)
@torch.no_grad()
def test_a_run_folder_brings_the_model_back(kind: str, tmp_path: Path) -> None:
    model = make_host(kind, drop_path_rate=0.1, qkv_bias=True)
    plan, _ = plan_for(model, "drop")
    slim = ps.apply(model, plan)
    ps.save(slim, tmp_path / "run")
    again, images = ps.load(tmp_path / "run"), make_images()
    assert type(again) is type(slim)
    assert torch.equal(again(images), slim(images))
    assert ps.inspect(again) == ps.inspect(slim)


def test_another_residual_scale_or_class_is_told() -> None:
    model: Any = make_host("lv")
    model.blocks[2].ls1.skip_lam = 3.0
    slim = ps.apply(model, ps.full_plan(model))
    with pytest.raises(ps.UnsupportedModel, match="settings don't describe"):
        spec_of(slim)  # slims as it is, but its settings don't describe it
    assert relative(slim(make_images()), model(make_images())) <= 1e-5

    class Other(LVViT):
        pass

    with pytest.raises(ps.UnsupportedModel, match="Other can't be slimmed: it changes LVViT"):
        ps.inspect(Other(img_size=32, depth=1))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), n=st.integers(1, 5))
def test_the_expected_maximum_is_the_mean_over_who_is_there(seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(1, n, 3, generator=generator, dtype=torch.float64)
    weight = torch.rand(1, n, generator=generator, dtype=torch.float64)
    mean = torch.zeros(3, dtype=torch.float64)
    for there in itertools.product([0.0, 1.0], repeat=n):
        present = torch.tensor(there, dtype=torch.float64)
        chance = (weight[0] * present + (1 - weight[0]) * (1 - present)).prod()
        best = values[0][present > 0].amax(dim=0) if present.any() else values[0].amin(dim=0)
        mean = mean + chance * best
    assert torch.allclose(expected_max(values, weight)[0], mean)


def test_what_a_patchs_absence_changes_is_the_derivative() -> None:
    host = open_host(make_host("lv").double().requires_grad_(False))
    tokens = torch.randn(1, host.info.tokens, host.info.width, dtype=torch.float64)
    weight = torch.ones(1, host.info.tokens, dtype=torch.float64, requires_grad=True)
    rows: Any = torch.autograd.functional.jacobian(lambda w: host.features(tokens, w)[0], weight)
    for patch in range(1, host.info.tokens):
        without = torch.cat([tokens[:, :patch], tokens[:, patch + 1 :]], dim=1)
        change = host.logits(tokens)[0] - host.logits(without)[0]
        assert torch.allclose(rows[:, 0, patch], change)


@pytest.mark.parametrize("kind", ["lv", "t2t"])
def test_search_and_recovery(kind: str) -> None:
    """From images to a recovered slim model: normalisation statistics and fixed tables stay as they are."""
    model, images = make_host(kind), make_images(12)
    slim = ps.slim(model, images, "drop", macs=0.85)
    config = ps.RecoverConfig(epochs=2, batch_size=4, supervised_epochs=0, learning_rate=1e-3)
    found = ps.finetune(slim, model, images, config)
    before, after = slim.state_dict(), found.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    still = [name for name in before if "running" in name or name.endswith((".w", "num_batches_tracked"))]
    still += ["pos_embed"] if kind == "t2t" else []
    assert still
    assert all(torch.equal(before[name], after[name]) for name in still)
