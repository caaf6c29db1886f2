"""Where a slim model's tokens come from, and what each image takes."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import patchslim as ps
from patchslim.hosts import open_slim
from patchslim.slimmed import states_of
from patchslim.steps.tokens import Tokens
from small import PYRAMID, WAYS, make_host, make_images, plan_for, plan_of, predicting
from step_plans import OURS, mixes

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")
HOST = make_host("mean with prefix")


@pytest.mark.parametrize("way", ["slice", "carry"])
def test_static_patches_are_those_of_the_plan(kind: str, way: str) -> None:
    model = make_host(kind)
    plan = plan_of(model, PYRAMID, way)
    assert plan.order is not None
    for kept, rows in zip(plan.kept, ps.sources(ps.apply(model, plan), make_images(2)), strict=True):
        expected = torch.zeros(2, len(kept), 16, dtype=torch.bool)
        for token, patch in enumerate(plan.order[: len(kept)]):
            expected[:, token, patch] = True
        assert torch.equal(rows, expected)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_tokens_are_disjoint_and_only_join_or_leave(data: st.DataObject) -> None:
    plan, weights = data.draw(mixes(HOST, list(OURS)))
    slim, images = ps.apply(HOST, plan, weights), make_images(3)
    carried = any(step.kind == "carry" for step in plan.steps)
    found = ps.sources(slim, images)
    for count, rows in zip(plan.counts, found, strict=True):
        assert rows.dtype == torch.bool
        assert rows.shape[::2] == (3, 16)
        assert rows.numel() == 0 or int(rows.sum(dim=1).max()) <= 1
        if plan.rectangular:
            assert rows.shape[1] == count
            assert bool(rows.any(dim=2).all())
    if not carried:
        for before, after in pairwise(found):
            assert_made_of(after, before)


def assert_made_of(after: Tensor, before: Tensor) -> None:
    """Every token holds whole tokens of the block before: (B, n, N), (B, t, N)."""
    overlap = after.float() @ before.float().transpose(1, 2)  # (B, n, t)
    assert torch.equal(overlap.sum(dim=2), after.float().sum(dim=2))
    assert bool(((overlap == 0) | (overlap == before.float().sum(dim=2)[:, None, :])).all())


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_tokens_know_how_many_patches_they_are(data: st.DataObject) -> None:
    """Sizes are added up where tokens merge; rows are found by following each patch."""
    names = [name for name in OURS if "threshold" not in name and name != "carry"]
    plan, weights = data.draw(mixes(HOST, names))
    slim, images = ps.apply(HOST, plan, weights), make_images(2)
    host = open_slim(slim)
    with torch.no_grad():
        states = states_of(host, host.embed(images), tracks=True)
    for state, rows in zip(states, ps.sources(slim, images), strict=True):
        assert isinstance(state, Tokens)
        if state.size is not None:
            assert torch.equal(state.size[:, plan.host.prefix_tokens :].expand(2, -1), rows.sum(dim=2).float())


@pytest.mark.parametrize("way", WAYS)
def test_an_image_alone_has_the_same_sources(way: str) -> None:
    model, images = make_host("mean"), make_images(3)
    slim = ps.apply(model, *plan_for(model, way))
    alone = [ps.sources(slim, image) for image in images.split(1)]
    for layer, rows in enumerate(ps.sources(slim, images)):
        for image, own in enumerate(alone):
            most = own[layer].shape[1]
            assert torch.equal(rows[image, :most], own[layer][0])
            assert not rows[image, most:].any()  # rows that an image lacks


@pytest.mark.parametrize("way", WAYS)
def test_asking_leaves_the_model_as_it_was(way: str) -> None:
    model, images = make_host(drop_path_rate=0.5), make_images(4)
    slim = ps.apply(model, *plan_for(model, way)).train()
    first = ps.sources(slim, images)
    assert slim.training
    assert all(map(torch.equal, first, ps.sources(slim.eval(), images)))
    assert torch.equal(ps.image_macs(slim.train(), images), ps.image_macs(slim.eval(), images))


def test_images_that_keep_alike_take_the_same() -> None:
    model = make_host()
    slim = ps.apply(model, *plan_for(model, "merge"))
    assert ps.image_macs(slim, make_images(3)).tolist() == [ps.count_macs(slim)] * 3


def test_sources_stay_the_same_while_nothing_is_removed() -> None:
    model = make_host("mean")
    slim = ps.apply(model, *predicting(model, counts=[4, 4, 4, 4]))
    rows = ps.sources(slim, make_images(1))
    assert all(torch.equal(rows[0], later) for later in rows[1:])
    assert rows[0].any(dim=1).sum().item() == 4
