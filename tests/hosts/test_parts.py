"""What may be read of a part and what has to be called."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from timm.layers import Mlp
from torch import Tensor, nn

import patchslim as ps
from patchslim.hosts import copied, in_eval, open_host, unwrapped
from patchslim.hosts.parts import acts_per_token, bare, idle, readable
from small import make_host, make_images


class Mixing(nn.Module):
    """What it makes of a token depends on the others."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=1, keepdim=True)


class Around(nn.Module):
    """A wrapper, as adapters are."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


def nothing(*args: Any) -> None:
    """A hook that changes nothing."""


def test_a_layer_is_read_only_where_its_weights_say_all() -> None:
    plain, hooked, own = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    hooked.register_forward_hook(nothing)
    own.forward = lambda x: x * 2  # type: ignore[method-assign,assignment]
    pruned = torch.nn.utils.prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    told = [readable(layer, nn.Linear) for layer in (plain, hooked, own, pruned, normed, Around(plain))]
    assert told == [True, False, False, False, False, False]
    assert (bare(plain), bare(hooked), idle(nn.Identity()), idle(nn.Dropout(0.5))) == (True, False, True, False)
    assert idle(nn.Dropout(0.5).eval())


def test_mixing_is_found_by_trying() -> None:
    for part in (nn.LayerNorm(8), nn.PReLU(), Mlp(8, 16), Around(nn.Linear(8, 8)), nn.Dropout(0.9)):
        assert acts_per_token(part, 8)
    quantised = torch.ao.nn.quantized.dynamic.Linear(8, 8)  # its scale goes by all tokens
    for part in (Mixing(), nn.Softmax(dim=1), nn.Sequential(nn.Linear(8, 8), Mixing()), nn.Linear(9, 8), quantised):
        assert not acts_per_token(part, 8)


@pytest.mark.parametrize(
    "name", ["attn.qkv", "attn.proj", "attn.q_norm", "attn.norm", "mlp.act", "mlp.fc1", "norm1", "ls1"]
)
def test_parts_of_others_are_taken_where_they_act_on_every_token(name: str) -> None:
    model: Any = make_host()
    images = make_images()
    for block in model.blocks:
        block.set_submodule(name, Around(block.get_submodule(name)))
    assert torch.allclose(ps.apply(model, ps.full_plan(model))(images), model(images), atol=1e-5)
    assert ps.count_macs(model) == ps.count_macs(make_host())
    model.blocks[1].set_submodule(name, Mixing())
    with pytest.raises(ps.UnsupportedModel, match=rf"block 1 with .*Mixing in {name.split('.')[0]}"):
        ps.inspect(model)


def test_hooks_on_the_whole_attention_are_refused() -> None:
    model: Any = make_host()
    model.blocks[2].attn.register_forward_hook(nothing)
    with pytest.raises(ps.UnsupportedModel, match="block 2, whose attention has a hook"):
        ps.inspect(model)


def test_a_copy_of_a_model_with_masks_and_norms() -> None:
    model, images = make_host(), make_images()
    for block in model.blocks:  # type: ignore[union-attr]
        torch.nn.utils.prune.l1_unstructured(block.attn.qkv, "weight", 0.5)
    before = model(images)
    with pytest.raises(RuntimeError):  # what torch says of it
        copy.deepcopy(model)
    found = copied(model)
    assert torch.equal(found(images), before)
    assert not {id(own) for own in found.parameters()} & {id(own) for own in model.parameters()}


def test_wrappers_are_seen_through() -> None:
    model = make_host()
    for wrapped in (torch.compile(model), nn.DataParallel(model), torch.compile(nn.DataParallel(model))):
        assert unwrapped(wrapped) is model  # type: ignore[arg-type]
        assert ps.inspect(wrapped) == ps.inspect(model)  # type: ignore[arg-type]
        assert open_host(wrapped).model is model  # type: ignore[arg-type]


def test_every_mode_comes_back() -> None:
    model: Any = make_host().train()
    model.blocks.eval()
    before = [module.training for module in model.modules()]
    with in_eval(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before
