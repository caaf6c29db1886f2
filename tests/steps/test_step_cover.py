"""Static patches that others join, each image as it sees fit."""

from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.hosts import open_host
from patchslim.plan import SlimPlan
from small import CHANNELS, covering, make_host, make_images


def made(kind: str = "class", drops: tuple[int, ...] = ()) -> tuple[SlimPlan, Any]:
    model = make_host(kind)
    plan, weights = covering(model, drops=drops)
    return plan, ps.apply(model, plan, weights)


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


def test_the_others_join_the_nearest_by_the_features_that_the_step_owns() -> None:
    """In the first block, patch by patch."""
    plan, slim = made()
    images, order = make_images(3), plan.order
    assert order is not None
    x = open_host(make_host()).embed(images)[:, 1:].detach()
    z = x @ slim.state_dict()["blocks.0.step.distance.weight"][:CHANNELS].T  # the last row is the weight's
    rows = ps.sources(slim, images)[0]
    for image in range(3):
        for patch in order[plan.counts[0] :]:
            far = [float((z[image, patch] - z[image, other]).square().sum()) for other in order[: plan.counts[0]]]
            assert bool(rows[image, far.index(min(far)), patch])


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
