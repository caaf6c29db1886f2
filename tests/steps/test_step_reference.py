"""Every kind of step, alone and in any mix, against the slow masked reference; and what it says of itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import patchslim as ps
from patchslim.plan import SlimPlan
from patchslim.steps import KINDS as STEP_KINDS
from patchslim.steps import Step
from patchslim.steps.carry import Carry
from patchslim.steps.cover import Cover
from patchslim.steps.keep import Keep
from patchslim.steps.merge import Merge
from patchslim.steps.predict import Predict
from patchslim.steps.slice import Slice
from patchslim.steps.threshold import Threshold
from small import KINDS, covering, make_host, make_images, nested, plan_of, relative
from step_plans import OURS, PEERS, STEPS, alone, mixes, owning

CLOSE = 1e-5
MIXED = {kind: make_host(kind) for kind in ("class", "mean with prefix")}
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


@torch.no_grad()
def off(model: nn.Module, plan: SlimPlan, weights: dict[str, Tensor], images: Tensor) -> float:
    """How far a slim model's logits are from the masked reference's."""
    return relative(ps.apply(model, plan, weights)(images), ps.masked_logits(model, plan, images, weights))


@pytest.mark.parametrize("name", OURS)
def test_alone(kind: str, name: str) -> None:
    model = make_host(kind)
    plan, weights = alone(model, OURS[name](9))
    images = make_images(2)
    assert off(model, plan, weights, images) < CLOSE
    if name != "keep":  # it can't pass because nothing happens
        with torch.no_grad():
            assert relative(ps.apply(model, plan, weights)(images), model(images)) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(kept=nested(), step=st.sampled_from(["slice", "carry", "cover"]))
def test_any_nested_sets(kind: str, kept: list[list[int]], step: str) -> None:
    """Steps in the plan's order on every kind of host, down to no patch at all where the head reads none."""
    model = make_host(kind)
    plan, weights = covering(model, kept) if step == "cover" else (plan_of(model, kept, step), {})
    assert off(model, plan, weights, make_images(2)) < CLOSE


@pytest.mark.parametrize(
    "steps",
    [
        [Slice(n=12), Carry(n=8), Carry(n=8), Carry(n=3)],  # the last block gives 12 patches of 16, to be put in order
        [Slice(n=13), Predict(n=9, merge=True, hidden=4), Keep(), Keep()],  # ties go by places in the plan's order
        [Predict(n=12, merge=True, hidden=4), Keep(), Merge(n=7, channels=3), Predict(n=5, hidden=4)],
        [Merge(n=16, channels=3), Predict(n=16, hidden=4), Predict(n=16, merge=True, hidden=4), Keep()],
        [Cover(n=12, channels=3), Slice(n=7), Cover(n=3, channels=5), Merge(n=2, channels=3)],
        [Slice(n=1), Merge(n=1, channels=3), Predict(n=1, merge=True, hidden=4), Keep()],  # nobody to join
        [Merge(n=2, channels=3), Keep(), Predict(n=1, merge=True, hidden=4), Merge(n=1, channels=3)],
    ],
)
def test_steps_that_lean_on_one_another(kind: str, steps: list[Step]) -> None:
    model, order = make_host(kind), [3, 0, 9, 14, 6, 1, 12, 15, 7, 4, 11, 2, 5, 8, 10, 13]
    plan, weights = owning(model, steps, order)
    assert off(model, plan, weights, make_images(2)) < CLOSE


@pytest.mark.parametrize("kind", MIXED)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), seed=st.integers(0, 5))
def test_in_any_mix(kind: str, data: st.DataObject, seed: int) -> None:
    plan, weights = data.draw(mixes(MIXED[kind], list(OURS)))
    assert off(MIXED[kind], plan, weights, make_images(2, seed=seed)) < CLOSE


@pytest.mark.parametrize("name", OURS)
def test_everything_kept_is_the_host(kind: str, name: str) -> None:
    model, images, step = make_host(kind), make_images(2), OURS[name](16)
    if isinstance(step, Threshold):
        step = step.model_copy(update={"least": 16})
    plan, weights = alone(model, step)
    with torch.no_grad():
        assert relative(ps.apply(model, plan, weights)(images), model(images)) < CLOSE


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_says_of_itself(name: str) -> None:
    """per_image: images choose for themselves. rectangular: equally many each. sizes: tokens stand for several."""
    model, images = make_host("class" if name == "evit" else "mean"), make_images(6)
    with torch.no_grad():  # where LayerNorm scales all channels alike, their mean is the same for every patch
        model.get_parameter("blocks.1.norm1.weight").normal_(generator=torch.Generator().manual_seed(0))
    step = STEPS[name](9)
    plan, weights = alone(model, step)
    slim = ps.apply(model, plan, weights)
    rows = ps.sources(slim, images)[1]
    assert any(not torch.equal(rows[0], other) for other in rows[1:]) == step.per_image
    assert (len(set(rows.any(dim=2).sum(dim=1).tolist())) == 1) == step.rectangular
    assert (int(rows.sum(dim=2).max()) > 1) == (step.sizes or step.kind in ("evit", "pool"))
    if step.kind in ("evit", "pool"):
        assert not step.placed


def test_every_kind_is_here() -> None:
    """A new kind of step is not forgotten by these tests."""
    assert {make(9).kind for make in STEPS.values()} == set(STEP_KINDS)


@pytest.mark.parametrize("name", PEERS)
def test_what_has_no_reference_says_so(name: str) -> None:
    model = make_host()
    plan, weights = alone(model, PEERS[name](9))
    with pytest.raises(ps.PlanError, match=f"the step '{name}' has no masked reference"):
        ps.masked_logits(model, plan, make_images(1), weights)
