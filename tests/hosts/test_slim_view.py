"""A model with other blocks seen as its host: its description, its settings, and the host itself, parameters shared."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import patchslim as ps
from hf_small import FEW, MADE, make_hf
from patchslim.hosts import as_host, open_host, open_slim, rebuild_host, shell, spec_of, split_qkv_, whole
from patchslim.hosts.block import BlockMath
from patchslim.hosts.timm_embed import MatmulPatchEmbed
from small import KINDS, STEMS, make_host, make_images, relative


class Standing(nn.Module):
    """Takes the place of a host block as slim blocks do: its parts under their names, and a step's own parameters."""

    def __init__(self, block: nn.Module, math: BlockMath, width: int) -> None:
        super().__init__()
        self.math, self.replaced = math, shell(block)
        for name, child in block.named_children():
            self.add_module(name, child)
        for name, parameter in block.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.step = nn.Linear(width, 3)
        self.train(block.training)

    def host_block(self) -> nn.Module:
        """The host's block again."""
        return whole(self.replaced, self)

    def forward(self, x: Tensor, mask: None = None, **_: Any) -> Tensor:
        """(B, n, d) → (B, n, d)."""
        return self.math.run(self, x, x.shape[1])


def made(kind: str) -> nn.Module:
    return make_hf(kind) if kind in MADE else make_host(kind)


def slim_of(model: nn.Module) -> nn.Module:
    """A model like `model`, with other blocks and, where there is one, another patch embedding."""
    host = open_host(copy.deepcopy(model))
    slim: Any = host.slimmed_([Standing(block, host.math, host.info.width) for block in host.blocks])
    slim.plan = object()
    return slim  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [*KINDS, *STEMS, *MADE])
@torch.no_grad()
def test_the_host_is_seen_through_a_slim_model(kind: str) -> None:
    model = made(kind)
    slim, info = slim_of(model), ps.inspect(model)
    assert ps.inspect(slim) == info
    assert spec_of(slim) == spec_of(model)
    view = open_slim(slim)
    assert view.info == info
    x: Any = view.embed(make_images())
    for block in view.blocks:
        x = block(x)
    wanted = open_host(model)
    y = wanted.embed(make_images())
    for block in wanted.blocks:
        y = wanted.math.run(block, y, y.shape[1])
    assert relative(view.logits(x), wanted.logits(y)) <= 1e-5


@pytest.mark.parametrize("kind", ["class", "lv", "t2t", *FEW])
@torch.no_grad()
def test_the_host_comes_back_with_shared_parameters(kind: str) -> None:
    model = made(kind)
    slim = slim_of(model)
    before = repr(slim)
    host = as_host(slim)
    assert type(host) is type(model)
    assert repr(host) == repr(model)
    assert repr(slim) == before
    assert hasattr(slim, "plan")
    assert not hasattr(host, "plan")
    own = dict(slim.named_parameters())
    assert all(parameter is own[name] for name, parameter in host.named_parameters())
    assert host.state_dict().keys() == model.state_dict().keys()
    assert ps.inspect(host) == ps.inspect(model)  # it passes every check
    again = rebuild_host(spec_of(slim)).eval()
    again.load_state_dict(host.state_dict())
    found, wanted = (open_host(one).embed(make_images()) for one in (again, model))
    assert torch.equal(found, wanted)


def test_what_is_put_back_is_what_is_there_by_now() -> None:
    slim: Any = slim_of(make_host())
    slim.blocks[0].norm1 = nn.LayerNorm(24)
    slim.patch_embed.proj = nn.Conv2d(3, 24, 8, 8)
    slim.train()
    host: Any = as_host(slim)
    assert isinstance(slim.patch_embed, MatmulPatchEmbed)
    assert host.blocks[0].norm1 is slim.blocks[0].norm1
    assert host.patch_embed.proj is slim.patch_embed.proj
    assert host.blocks[0].training
    assert host.patch_embed.training
    host.blocks[0].register_forward_hook(lambda *_: None)
    host.blocks[0].norm1 = nn.Identity()
    other: Any = as_host(slim)
    assert not other.blocks[0]._forward_hooks
    assert isinstance(slim.blocks[0].norm1, nn.LayerNorm)


@pytest.mark.parametrize("kind", ["class", "SiglipVisionModel"])
@torch.no_grad()
def test_views_survive_copies_and_pickles(kind: str) -> None:
    model = made(kind)
    slim, info = slim_of(model), ps.inspect(model)
    for again in (copy.deepcopy(slim), pickle.loads(pickle.dumps(slim))):
        assert ps.inspect(again) == info
        assert as_host(again).state_dict().keys() == model.state_dict().keys()
        assert next(as_host(again).parameters()) is next(again.parameters())
    math = open_host(model).math
    assert pickle.loads(pickle.dumps(math)) == copy.deepcopy(math) == math


def test_a_split_model_is_seen_as_well() -> None:
    model = make_host()
    assert ps.inspect(split_qkv_(slim_of(model), ())) == ps.inspect(model)
