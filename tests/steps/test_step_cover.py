"""Static patches that others join, each image as it sees fit, against slow loops."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import patchslim as ps
from patchslim.kernels.match import all_into_first, unit_keys
from patchslim.kernels.merge import merge
from patchslim.plan import SlimPlan
from small import cover_plan, make_host, make_images


def made(kind: str = "class", drops: tuple[int, ...] = ()) -> tuple[SlimPlan, Any]:
    model = make_host(kind)
    plan = cover_plan(model, drops=drops)
    return plan, ps.apply(model, plan)


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
    found = merge(x, None, all_into_first(k, n, prefix), prefix, weight)
    assert torch.equal(found.x[:, :prefix], x[:, :prefix])
    for image in range(3):
        rows, sizes = slow_join(x[image, prefix:], unit_keys(k, prefix)[image], n, weight[image])
        assert torch.allclose(found.x[image, prefix:], rows)
        assert found.size[image].tolist() == [1.0] * prefix + sizes


def test_autocast_rounds_neither_likeness_nor_averages() -> None:
    x, k = torch.randn(2, 10, 8), torch.randn(2, 2, 10, 4)
    wanted = merge(x, None, all_into_first(k, 5, 1), 1)
    with torch.autocast("cpu", torch.bfloat16):
        found = merge(x, None, all_into_first(k, 5, 1), 1)
    assert torch.equal(found.x, wanted.x)


def test_which_stay_is_the_plans_and_what_joins_them_is_the_images(kind: str) -> None:
    plan, slim = made(kind)
    images = make_images(6)
    sources = ps.sources(slim, images)
    assert plan.order is not None
    for layer, rows in enumerate(sources):
        assert rows.shape == (6, plan.counts[layer], 16)
        assert bool((rows.sum(dim=1) == min(1, plan.counts[layer])).all())  # every patch is in just one token
        for token, patch in enumerate(plan.order[: plan.counts[layer]]):
            assert bool(rows[:, token, patch].all())  # its own is one of them
    assert any(not torch.equal(sources[0][0], sources[0][image]) for image in range(1, 6))


@pytest.mark.parametrize("drops", [(1,), (2,), (1, 3)])
def test_patches_that_a_block_drops_are_in_no_token(drops: tuple[int, ...]) -> None:
    plan, slim = made("mean", drops)
    left = 16
    for layer, rows in enumerate(ps.sources(slim, make_images(2)), start=1):
        dropped = {patch for image in rows for patch in (~image.any(dim=0)).nonzero()[:, 0].tolist()}
        if layer in drops:
            assert len(dropped) >= left - plan.counts[layer - 1] > 0
        elif layer < min(drops):
            assert not dropped
        left = plan.counts[layer - 1]
