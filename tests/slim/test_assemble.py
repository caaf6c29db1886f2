"""The sliced model against the masked oracle, and against everything a user does with a timm model."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings

import patchslim as ps
from small import KINDS, PYRAMID, make_host, make_images, nested, plan_of, relative, slim_of


@pytest.mark.parametrize("removed", ["drop", "carry"])
@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=15, deadline=None)
@given(kept=nested())
@torch.no_grad()
def test_sliced_equals_masked(kind: str, removed: str, kept: list[list[int]]) -> None:
    model = make_host(kind)
    plan = plan_of(model, kept, removed)
    images = make_images(2)
    assert relative(ps.apply(model, plan)(images), ps.masked_logits(model, plan, images)) <= 1e-5


@torch.no_grad()
def test_slimming_changes_the_output(kind: str) -> None:
    """The oracle test can't pass because nothing happens."""
    model, slim = slim_of(kind)
    images = make_images()
    assert relative(slim(images), model(images)) > 1e-3


@torch.no_grad()
def test_tokens_really_leave() -> None:
    _, slim = slim_of()
    shapes: list[int] = []
    for block in slim.blocks:
        block.register_forward_hook(lambda module, args, out: shapes.append(out.shape[1]))
    slim(make_images())
    assert shapes == [8, 5, 4, 2]
    assert slim.forward_features(make_images()).shape == (3, 2, 24)


@torch.no_grad()
def test_carried_tokens_come_back_in_the_hosts_order() -> None:
    model, slim = slim_of(removed="carry")
    images = make_images()
    tokens = slim.forward_features(images)
    assert tokens.shape == model.forward_features(images).shape  # type: ignore[operator]
    # A patch that no block keeps is still the host's embedding of that patch.
    host: Any = model
    embedded = host.norm(host._pos_embed(host.patch_embed(images)))
    assert torch.allclose(tokens[:, 1 + 0], embedded[:, 1 + 0], atol=1e-6)


@torch.no_grad()
def test_parts_give_the_whole(kind: str) -> None:
    _, slim = slim_of(kind)
    images = make_images()
    assert torch.equal(slim.forward_head(slim.forward_features(images)), slim(images))


def test_parameters_keep_the_hosts_names_and_load_back(kind: str) -> None:
    model, slim = slim_of(kind)
    assert list(slim.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        for parameter in slim.parameters():
            parameter.mul_(1.5)
    model.load_state_dict(slim.state_dict())
    images = make_images()
    plan = slim.plan
    assert relative(ps.masked_logits(model, plan, images), slim(images)) <= 1e-5


def test_the_host_is_left_as_it_was() -> None:
    model = make_host()
    before = copy.deepcopy(model.state_dict())
    _ = ps.apply(model, plan_of(model, PYRAMID), {"blocks.0.norm1.weight": torch.zeros(24)})
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert type(model.blocks[0]).__name__ == "Block"  # type: ignore[index]


def test_training_mode_trains_every_parameter_that_is_used() -> None:
    model = make_host(drop_path_rate=0.1, proj_drop_rate=0.1)
    slim = ps.apply(model, plan_of(model, PYRAMID)).train()
    torch.manual_seed(0)
    images = make_images(8)
    first, second = slim(images), slim(images)
    assert not torch.equal(first, second)  # dropout and stochastic depth are at work
    first.square().mean().backward()
    without = [name for name, parameter in slim.named_parameters() if parameter.grad is None]
    assert without == []


def test_gradients_equal_the_masked_oracles() -> None:
    model, slim = slim_of()
    images = make_images()
    slim(images).square().sum().backward()
    loss: Any = ps.masked_logits(model, slim.plan, images).square().sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        own = slim.get_parameter(name).grad
        assert own is not None
        assert parameter.grad is not None
        assert torch.allclose(own, parameter.grad, rtol=1e-3, atol=1e-4 * float(parameter.grad.abs().max())), name


@pytest.mark.parametrize("removed", ["drop", "carry"])
@torch.no_grad()
def test_compiles_without_graph_breaks(kind: str, removed: str) -> None:
    _, slim = slim_of(kind, removed)
    images = make_images()
    compiled: Any = torch.compile(slim, fullgraph=True, backend="aot_eager")
    assert relative(compiled(images), slim(images)) <= 1e-5
    torch.compiler.reset()


@torch.no_grad()
def test_runs_under_autocast() -> None:
    _, slim = slim_of()
    images = make_images()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = slim(images)
    assert out.dtype == torch.bfloat16
    assert relative(out.float(), slim(images)) < 0.05


@torch.no_grad()
def test_gradient_checkpointing_and_double_precision_work() -> None:
    _, slim = slim_of()
    images = make_images()
    expected = slim(images)
    slim.set_grad_checkpointing(True)
    assert relative(slim(images), expected) <= 1e-5
    assert relative(slim.double()(images.double()).float(), expected) <= 1e-5


def test_another_image_size_and_a_slim_model_are_refused() -> None:
    model = make_host(dynamic_img_size=True)
    slim: Any = ps.apply(model, plan_of(model, PYRAMID))
    with pytest.raises(ps.PlanError, match="17 tokens and got 26"):
        slim(make_images(1, 40))
    fixed = make_host()
    with pytest.raises(ps.PlanError, match="32×32 pixels and got 40×40"):
        ps.apply(fixed, plan_of(fixed, PYRAMID))(make_images(1, 40))
    with pytest.raises(ps.UnsupportedModel, match="slim already"):
        ps.apply(slim, slim.plan)


def test_unfit_tuned_weights_are_refused() -> None:
    model = make_host()
    plan = plan_of(model, PYRAMID)
    with pytest.raises(ps.CheckpointError, match=r"unknown blocks\.9"):
        ps.apply(model, plan, {"blocks.9.norm1.weight": torch.zeros(24)})
    with pytest.raises(ps.CheckpointError, match="shape"):
        ps.apply(model, plan, {"blocks.0.norm1.weight": torch.zeros(23)})
    with pytest.raises(ps.CheckpointError, match="NaN"):
        ps.apply(model, plan, {"blocks.0.norm1.weight": torch.full((24,), torch.nan)})
