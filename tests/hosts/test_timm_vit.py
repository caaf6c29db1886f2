"""timm hosts: everything kept gives the host's own output, and what can't be reproduced is refused by name."""

from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import patchslim as ps
from patchslim.hosts import open_host, projections
from patchslim.hosts.block import token_major
from patchslim.hosts.timm_spec import describe, rebuild
from patchslim.kernels.attention import plain
from small import make_host, make_images, relative

# One of every supported family, small enough for a test: the architecture stays, widths and depth shrink.
SMALL = {"embed_dim": 48, "depth": 3, "num_heads": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "deit_tiny_patch16_224": {"img_size": 64},
    "deit_tiny_distilled_patch16_224": {"img_size": 64},
    "deit3_small_patch16_224": {"img_size": 64, "init_values": 0.1},
    "vit_tiny_patch16_224": {"img_size": (64, 96)},
    "vit_small_patch32_224": {"img_size": 96},
    "vit_base_patch8_224": {"img_size": 40},
    "vit_small_patch14_dinov2": {"img_size": 70, "init_values": 0.1},
    "vit_small_patch14_reg4_dinov2": {"img_size": 70, "init_values": 0.1},
    "vit_giant_patch14_dinov2": {"img_size": 70, "init_values": 0.1},
    "vit_base_patch16_clip_224": {"img_size": 64},
    "vit_base_patch16_clip_quickgelu_224": {"img_size": 64},
    "vit_base_patch16_siglip_224": {"img_size": 64},
    "vit_base_patch16_siglip_gap_224": {"img_size": 64},
    "vit_medium_patch16_gap_256": {"img_size": 64},
    "vit_medium_patch16_reg4_gap_256": {"img_size": 64},
    "vit_so150m_patch16_reg4_map_256": {"img_size": 64},
    "aimv2_large_patch14_224": {"img_size": 70},
    "beit3_base_patch16_224": {"img_size": 64},
    "vit_intern300m_patch14_448": {"img_size": 70, "init_values": 0.1},
}


def family(name: str) -> nn.Module:
    """A small model of a family with lively random weights."""
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, **(SMALL | FAMILIES[name])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def pixels(model: nn.Module, count: int = 2) -> torch.Tensor:
    """Random images of the model's size."""
    info = ps.inspect(model)
    return torch.randn(count, 3, *info.image_size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", list(FAMILIES))
@torch.no_grad()
def test_everything_kept_gives_the_hosts_logits(name: str) -> None:
    model = family(name)
    images = pixels(model)
    slim = ps.apply(model, ps.full_plan(model))
    assert relative(slim(images), model(images)) <= 1e-5
    assert relative(slim.forward_features(images), model.forward_features(images)) <= 1e-5  # type: ignore[operator]


@pytest.mark.parametrize("name", list(FAMILIES))
@torch.no_grad()
def test_a_host_is_rebuilt_from_its_settings(name: str) -> None:
    model = family(name)
    again = rebuild(describe(model)).eval()
    again.load_state_dict(model.state_dict())
    images = pixels(model)
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize(
    ("name", "readout", "prefix"),
    [
        ("deit_tiny_patch16_224", "class", 1),
        ("deit_tiny_distilled_patch16_224", "class+distillation", 2),
        ("vit_small_patch14_reg4_dinov2", "class", 5),
        ("vit_base_patch16_siglip_224", "attention-pool", 0),
        ("vit_medium_patch16_gap_256", "mean", 0),
    ],
)
def test_readout_and_prefix(name: str, readout: str, prefix: int) -> None:
    info = ps.inspect(family(name))
    assert (info.readout, info.prefix_tokens) == (readout, prefix)
    assert readout in str(info)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("swin_tiny_patch4_window7_224", "SwinTransformer.*window"),
        ("eva02_tiny_patch14_224", "Eva.*rotary"),
        ("beit_base_patch16_224", "Beit.*position bias"),
        ("vit_base_patch16_18x2_224", "ParallelThingsBlock.*parallel"),
        ("vit_base_patch16_rpn_224", "ResPostBlock"),
        ("vit_dwee_patch16_reg1_gap_256", "DiffAttention"),
        ("vit_small_r26_s32_224", "HybridEmbed"),
        ("vit_relpos_small_patch16_224", "position bias"),
        ("cait_xxs24_224", "Cait"),
        ("resnet18", "ResNet.*convolutional"),
    ],
)
def test_what_cant_be_reproduced_is_refused_by_name(name: str, words: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(ps.UnsupportedModel, match=words) as caught:
        ps.inspect(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"patch_drop_rate": 0.5}, {"global_pool": "max"}, {"global_pool": "prr"}])
def test_settings_that_cant_be_reproduced_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ps.UnsupportedModel):
        ps.inspect(VisionTransformer(img_size=32, embed_dim=24, depth=1, num_heads=2, **settings))


def test_a_changed_part_is_refused_or_not_saved() -> None:
    model: Any = make_host()
    model.blocks[1].mlp = nn.Conv1d(24, 24, 1)
    with pytest.raises(ps.UnsupportedModel, match="Conv1d in mlp"):
        ps.inspect(model)
    other: Any = make_host()
    other.blocks[2].mlp.act = nn.ReLU()
    with pytest.raises(ps.UnsupportedModel, match="settings don't describe"):
        describe(other)


@torch.no_grad()
def test_host_parts_put_together_are_the_host(kind: str) -> None:
    model = make_host(kind)
    host = open_host(model)
    images = make_images()
    x = host.embed(images)
    for block in host.blocks:
        attention = host.attention(block, x, x.shape[1])
        assert torch.allclose(attention.sum(-1), torch.ones(()))
        x = host.math.run(block, x, x.shape[1])
    assert relative(host.logits(x), model(images)) <= 1e-5


@torch.no_grad()
def test_readout_moment_is_the_outer_product_of_what_the_head_reads(kind: str) -> None:
    model = make_host(kind)
    host = open_host(model)
    tokens = torch.randn(2, host.info.tokens, host.info.width)
    moment = host.readout_moment(tokens)
    assert torch.allclose(moment, moment.transpose(1, 2))
    assert float(torch.linalg.eigvalsh(moment).min()) > -1e-6
    trace = moment.diagonal(dim1=1, dim2=2)
    if kind == "distilled":
        assert trace[0, :3].tolist() == [1, 1, 0]
    elif host.info.readout == "class":
        assert trace[0].nonzero().flatten().tolist() == [0]
    elif kind == "lv":  # the class token, and half of one patch for every class
        assert host.has_patch_head
        best = host.patch_logits(tokens).argmax(dim=1)
        shares = [[(row == patch).float().mean() / 4 for patch in range(host.info.patches)] for row in best]
        assert torch.allclose(trace, torch.tensor([[1.0, *row] for row in shares]))
    else:  # rows that sum to one: the moment's sum is one
        assert torch.allclose(moment.sum(dim=(1, 2)), torch.ones(2), atol=1e-5)


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_intern300m_patch14_448", "beit3_base_patch16_224"])
@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.8, 0.4])  # of the tokens; some with one product for all three projections
@torch.no_grad()
def test_a_block_computes_the_same_whichever_way_tokens_lie(name: str, carry: bool, share: float) -> None:
    host = open_host(family(name))
    x = host.embed(pixels(host.model, 3))
    n = round(share * x.shape[1])
    lying = x.transpose(0, 1).contiguous().transpose(0, 1)  # (n_in, B, d) in memory
    assert token_major(lying)
    assert not token_major(x)
    for block in host.blocks:
        wanted, found = (host.math.run(block, tokens, n, carry) for tokens in (x, lying))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert token_major(found)  # and so they stay, in one piece
        assert found.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_intern300m_patch14_448", "beit3_base_patch16_224"])
@torch.no_grad()
def test_one_product_for_all_three_projections_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = open_host(family(name))
    x = host.embed(pixels(host.model, 1))
    for n in (1, x.shape[1] // 2):
        monkeypatch.setattr(projections, "one_product", lambda *_: False)
        wanted = host.math.run(host.blocks[0], x, n)
        monkeypatch.setattr(projections, "one_product", lambda *_: True)
        torch.testing.assert_close(host.math.run(host.blocks[0], x, n), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_intern300m_patch14_448", "beit3_base_patch16_224"])
@torch.no_grad()
def test_queries_that_come_for_nothing_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = open_host(family(name))
    block, x = host.blocks[0], host.embed(pixels(host.model, 1))
    found = []
    for few in (False, True):
        monkeypatch.setattr(projections, "few_rows", lambda y, few=few: few)
        incoming = host.math.read(block, x)
        assert (incoming.q is not None) == few
        found.append((host.math.compute(block, x, incoming, plain), host.math.class_attention(block, incoming, None)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
