"""Static patches that others join, each image as it sees fit, against the slow masked reference and slow loops."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import patchslim as ps
from flops import counted, unfused
from patchslim.plan import SlimPlan, build_plan, make_plan
from patchslim.slim.merge import join_first, unit_keys
from patchslim.slim.tokens import Tokens
from small import PYRAMID, make_host, make_images, merge_plan, nested, own_plan, relative

CLOSE = 1e-5


def made(kind: str = "class", **how: Any) -> tuple[nn.Module, SlimPlan, Any]:
    model = make_host(kind)
    plan = own_plan(model, **how)
    return model, plan, ps.apply(model, plan)


@pytest.mark.parametrize("drops", [[], [2], [1, 3]])
def test_equals_the_masked_reference(kind: str, drops: list[int]) -> None:
    model, plan, slim = made(kind, drops=drops)
    images = make_images(3)
    with torch.no_grad():
        assert relative(slim(images), ps.masked_logits(model, plan, images)) < CLOSE


@settings(max_examples=25, deadline=None)
@given(kept=nested(), seed=st.integers(0, 5))
def test_any_nested_sets_equal_the_masked_reference(kept: list[list[int]], seed: int) -> None:
    model, plan, slim = made("mean with prefix", kept=kept)
    images = make_images(2, seed=seed)
    with torch.no_grad():
        assert relative(slim(images), ps.masked_logits(model, plan, images)) < CLOSE


def test_everything_kept_gives_the_hosts_logits(kind: str) -> None:
    model, _, slim = made(kind, kept=[list(range(16))] * 4)
    images = make_images(3)
    with torch.no_grad():
        assert relative(slim(images), model(images)) < CLOSE


def slow_join(x: Tensor, keys: Tensor, n: int, weight: Tensor) -> tuple[Tensor, list[int]]:
    """One image, patch by patch: x (t, d), keys (t, c), weight (t,)."""
    into = [max(range(n), key=lambda stay: float(keys[gone] @ keys[stay])) for gone in range(n, len(x))]
    rows, sizes = [], []
    for stay in range(n):
        group = [stay, *(n + place for place, target in enumerate(into) if target == stay)]
        own = weight[group] / weight[group].sum()
        mean = own @ x[group]
        rows.append(mean / mean.norm() * (own @ x[group].norm(dim=1)))
        sizes.append(len(group))
    return torch.stack(rows), sizes


@settings(max_examples=40, deadline=None)
@given(patches=st.integers(2, 12), data=st.data(), seed=st.integers(0, 99))
def test_joining_is_the_slow_loop(patches: int, data: st.DataObject, seed: int) -> None:
    n, prefix = data.draw(st.integers(1, patches - 1)), 2
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, prefix + patches, 5, generator=generator, dtype=torch.float64)
    k = torch.randn(3, 2, prefix + patches, 4, generator=generator, dtype=torch.float64)
    weight = torch.rand(3, patches, generator=generator).double() + 0.1
    found = join_first(Tokens(x), k, n, prefix, weight)
    assert found.size is not None
    assert torch.equal(found.x[:, :prefix], x[:, :prefix])
    for image in range(3):
        rows, sizes = slow_join(x[image, prefix:], unit_keys(k, prefix)[image], n, weight[image])
        assert torch.allclose(found.x[image, prefix:], rows)
        assert found.size[image].tolist() == [1.0] * prefix + sizes


def test_sources_tell_what_joined_what_in_each_image(kind: str) -> None:
    _, plan, slim = made(kind)
    images = make_images(6)
    sources = slim.sources(images)
    alone = [slim.sources(image) for image in images.split(1)]
    for layer, rows in enumerate(sources):
        assert rows.shape == (6, plan.counts[layer], 16)
        assert bool((rows.sum(dim=1) == min(1, plan.counts[layer])).all())  # every patch is in just one token
        places = [patch for patch in plan.order if patch in plan.kept[layer]]
        assert all(bool(rows[:, token, patch].all()) for token, patch in enumerate(places))  # its own is one of them
        assert torch.equal(rows, torch.cat([found[layer] for found in alone]))
    assert any(not torch.equal(sources[0][0], sources[0][image]) for image in range(1, 6))


def test_patches_that_a_block_drops_are_in_no_token() -> None:
    _, plan, slim = made(drops=[1])
    rows = slim.sources(make_images(2))[0]
    assert rows.sum(dim=(1, 2)).tolist() == [plan.counts[0]] * 2


def test_macs_are_those_that_torch_counts(kind: str) -> None:
    model = unfused(kind)
    plan = own_plan(model, drops=[2])
    assert ps.count_macs(ps.apply(model, plan)) == counted(ps.apply(model, plan))
    assert ps.count_macs(model, plan) > ps.count_macs(model, make_plan(ps.inspect(model), plan.kept))


def test_it_has_the_hosts_parameters_and_nothing_else() -> None:
    model, _, slim = made()
    assert slim.state_dict().keys() == model.state_dict().keys()
    copy.deepcopy(model).load_state_dict(slim.state_dict())


def test_a_run_and_a_plan_come_back_as_they_were(tmp_path: Any) -> None:
    _, plan, slim = made(drops=[2])
    plan.save(tmp_path / "plan.json")
    assert ps.SlimPlan.load(tmp_path / "plan.json") == plan
    ps.save(slim, tmp_path / "run")
    images = make_images(2)
    with torch.no_grad():
        assert torch.equal(ps.load(tmp_path / "run")(images), slim(images))


def test_it_learns_and_compiles_whole() -> None:
    _, _, slim = made()
    images = make_images(2)
    slim.train()(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in slim.blocks[0].parameters())
    slim.eval()
    with torch.no_grad():
        wanted = slim(images)
        compiled: Any = torch.compile(slim, fullgraph=True, backend="aot_eager")
        assert relative(compiled(images), wanted) < CLOSE


def test_autocast_rounds_neither_likeness_nor_averages() -> None:
    x, k = torch.randn(2, 10, 8), torch.randn(2, 2, 10, 4)
    wanted = join_first(Tokens(x), k, 5, 1, None)
    with torch.autocast("cpu", torch.bfloat16):
        found = join_first(Tokens(x), k, 5, 1, None)
    assert torch.equal(found.x, wanted.x)


def test_fixed_groups_are_told_apart() -> None:
    model = make_host()
    fixed, own = merge_plan(model), own_plan(model)
    assert (fixed.groups, fixed.varies, own.groups, own.varies) == ("fixed", False, "own", True)
    assert ps.SlimPlan.model_validate_json(fixed.to_json()).groups == "fixed"


def test_drops_and_groups_are_refused_where_nothing_merges() -> None:
    info = ps.inspect(make_host())
    for removed, more in (("drop", {"drops": [2]}), ("carry", {"drops": [2]}), ("drop", {"into": [-1] * 16})):
        with pytest.raises(ps.PlanError):
            build_plan(info, removed=removed, kept=[sorted(block) for block in PYRAMID], **more)
    with pytest.raises(ps.PlanError, match="drops"):
        own_plan(make_host(), drops=[9])
