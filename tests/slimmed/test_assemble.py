"""A slim model against its host, and against everything a user does with a timm model."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import patchslim as ps
from patchslim.hosts import open_host
from patchslim.slimmed import SlimBlock, frozen_keys, is_slim, made_from, own_keys, plan_of, rectangular
from small import PYRAMID, WAYS, make_host, make_images, merging, plan_for, predicting, relative, slim_of
from small import plan_of as plan_from

CLOSE = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


def made(way: str, kind: str = "class") -> tuple[nn.Module, nn.Module]:
    model = make_host(kind)
    return model, ps.apply(model, *plan_for(model, way))


def test_the_full_plan_is_the_host(kind: str) -> None:
    model, images = make_host(kind), make_images()
    plan = ps.full_plan(model)
    with torch.no_grad():
        assert relative(ps.apply(model, plan)(images), model(images)) < CLOSE
        assert relative(ps.masked_logits(model, plan, images), model(images)) < CLOSE


@torch.no_grad()
def test_tokens_really_leave() -> None:
    _, slim = slim_of()
    shapes: list[int] = []
    for block in slim.blocks:  # type: ignore[union-attr]
        block.register_forward_hook(lambda module, args, out: shapes.append(out.shape[1]))
    slim(make_images())
    assert shapes == [8, 5, 4, 2]
    assert slim.forward_features(make_images()).shape == (3, 2, 24)  # type: ignore[operator]


@torch.no_grad()
def test_carried_tokens_come_back_in_the_hosts_order() -> None:
    model: Any = make_host()
    slim: Any = ps.apply(model, plan_from(model, PYRAMID, "carry"))
    images = make_images()
    tokens = slim.forward_features(images)
    assert tokens.shape == model.forward_features(images).shape
    # A patch that no block keeps is still the host's embedding of that patch.
    embedded = model.norm(model._pos_embed(model.patch_embed(images)))
    assert torch.allclose(tokens[:, 1 + 0], embedded[:, 1 + 0], atol=1e-6)


@torch.no_grad()
def test_parts_give_the_whole(kind: str) -> None:
    _, slim = slim_of(kind)
    images, parts = make_images(), slim
    assert torch.equal(parts.forward_head(parts.forward_features(images)), slim(images))  # type: ignore[operator]


@pytest.mark.parametrize("way", WAYS)
def test_it_is_of_the_hosts_own_class_with_a_plan_more(way: str) -> None:
    model, slim = made(way)
    assert type(slim) is type(model)
    assert set(vars(slim)) - set(vars(model)) == {"plan"}
    assert (is_slim(slim), is_slim(model)) == (True, False)
    assert (plan_of(slim), plan_of(model)) == (vars(slim)["plan"], None)
    assert rectangular(slim) == (way != "threshold")
    assert rectangular(model)
    assert (made_from(slim), made_from(model)) == (ps.inspect(model), None)


@pytest.mark.parametrize("way", WAYS)
def test_copies_and_pickles(way: str) -> None:
    _, slim = made(way)
    images = make_images(2)
    for twin in (copy.deepcopy(slim), pickle.loads(pickle.dumps(slim))):
        assert type(twin) is type(slim)
        assert plan_of(twin) == plan_of(slim)
        with torch.no_grad():
            assert torch.equal(twin(images), slim(images))
        assert all(map(torch.equal, ps.sources(twin, images), ps.sources(slim, images)))


@pytest.mark.parametrize("way", WAYS)
def test_its_weights_are_the_hosts_and_the_steps_own(way: str) -> None:
    model, slim = made(way)
    own, state = own_keys(slim), slim.state_dict()
    assert [name for name in state if name not in own] == list(model.state_dict())
    assert own == set(plan_for(model, way)[1])
    with torch.no_grad():
        for name in model.state_dict():
            slim.get_parameter(name).mul_(1.5)
    other = make_host(seed=9)
    other.load_state_dict({name: value for name, value in slim.state_dict().items() if name not in own})
    again = ps.apply(other, *plan_for(model, way))
    with torch.no_grad():
        assert torch.equal(again(make_images(2)), slim(make_images(2)))


def test_a_state_dict_saved_by_torch_comes_back() -> None:
    model, slim = made("merge")
    file = io.BytesIO()
    torch.save(slim.state_dict(), file)
    file.seek(0)
    other = ps.apply(make_host(seed=9), *plan_for(model, "merge"))
    other.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        assert torch.equal(other(make_images(2)), slim(make_images(2)))


def test_the_host_is_left_as_it_was() -> None:
    model = make_host()
    before = copy.deepcopy(model.state_dict())
    ps.apply(model, *merging(model))
    ps.apply(model, plan_from(model, PYRAMID), {"blocks.0.norm1.weight": torch.zeros(24)})
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(isinstance(block, SlimBlock) for block in open_host(model).blocks)


def test_nobody_elses_random_numbers_change() -> None:
    model = make_host()
    plan, weights = predicting(model)
    torch.manual_seed(3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    ps.apply(model, plan, weights)
    assert torch.rand(1) == drawn


def test_training_mode_trains_every_parameter_that_is_used() -> None:
    model = make_host(drop_path_rate=0.1, proj_drop_rate=0.1)
    slim = ps.apply(model, plan_from(model, PYRAMID)).train()
    torch.manual_seed(0)
    images = make_images(8)
    first, second = slim(images), slim(images)
    assert not torch.equal(first, second)  # dropout and stochastic depth are at work
    first.square().mean().backward()
    assert [name for name, parameter in slim.named_parameters() if parameter.grad is None] == frozen_keys(slim) == []


@torch.no_grad()
def test_compiles_without_graph_breaks(kind: str) -> None:
    model = make_host(kind, depth=2)
    slim = ps.apply(model, plan_from(model, [PYRAMID[0], PYRAMID[3]]))
    images = make_images(2)
    torch.compiler.reset()
    compiled: Any = torch.compile(slim, fullgraph=True, backend="eager")
    assert relative(compiled(images), slim(images)) <= CLOSE


@torch.no_grad()
def test_gradient_checkpointing_and_double_precision_work() -> None:
    _, slim = slim_of()
    images = make_images()
    expected = slim(images)
    slim.set_grad_checkpointing(True)  # type: ignore[operator]
    assert relative(slim(images), expected) <= CLOSE
    assert relative(slim.double()(images.double()).float(), expected) <= CLOSE


def test_another_image_size_and_a_slim_model_are_refused() -> None:
    model = make_host(dynamic_img_size=True)
    slim = ps.apply(model, plan_from(model, PYRAMID))
    with pytest.raises(ps.PlanError, match="32×32 pixels and got 40×40"):
        slim(make_images(1, 40))
    fixed = make_host()
    with pytest.raises(ps.PlanError, match="32×32 pixels and got 40×40"):
        ps.apply(fixed, plan_from(fixed, PYRAMID))(make_images(1, 40))
    with pytest.raises(ps.UnsupportedModel, match="slim already"):
        ps.apply(slim, ps.full_plan(model))


def test_unfit_weights_are_refused() -> None:
    model = make_host()
    plan = plan_from(model, PYRAMID)
    with pytest.raises(ps.CheckpointError, match=r"unknown blocks\.9"):
        ps.apply(model, plan, {"blocks.9.norm1.weight": torch.zeros(24)})
    with pytest.raises(ps.CheckpointError, match="shape"):
        ps.apply(model, plan, {"blocks.0.norm1.weight": torch.zeros(23)})
    with pytest.raises(ps.CheckpointError, match="NaN"):
        ps.apply(model, plan, {"blocks.0.norm1.weight": torch.full((24,), torch.nan)})


@pytest.mark.parametrize("way", ["merge", "predict", "threshold"])
def test_what_steps_own_has_to_come_with_the_plan(way: str) -> None:
    model = make_host()
    plan, weights = plan_for(model, way)
    first = sorted(weights)[0]
    with pytest.raises(ps.PlanError, match=f"weights of their own, and {first} is not given; give all of them"):
        ps.apply(model, plan)
    with pytest.raises(ps.PlanError, match=f"{first} is not given"):
        ps.apply(model, plan, {name: tensor for name, tensor in weights.items() if name != first})
    with pytest.raises(ps.PlanError, match="belong to another model or plan; give those that came with this plan"):
        ps.apply(model, plan, {name: tensor + 1 for name, tensor in weights.items()})
    with pytest.raises(ps.PlanError, match=r"hold blocks\.0\.step\..*, and no step of this plan owns that"):
        ps.apply(model, ps.full_plan(model), weights)
    with pytest.raises(ps.PlanError, match="does not fit"):
        ps.apply(make_host(embed_dim=48), plan, weights)
