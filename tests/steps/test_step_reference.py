"""Every kind of step, alone and in any mix, against the slow masked reference; and what it says of itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import patchslim as ps
from flops import counted, unfused
from patchslim.plan import SlimPlan
from patchslim.steps import KINDS
from patchslim.steps.threshold import Threshold
from small import make_host, make_images, relative
from step_plans import OURS, PEERS, STEPS, alone, mixes

CLOSE = 1e-5
MIXED = {kind: unfused(kind) for kind in ("class", "mean with prefix")}
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


@torch.no_grad()
def off(model: nn.Module, plan: SlimPlan, weights: dict[str, Tensor], images: Tensor) -> float:
    """How far a slim model's logits are from the masked reference's."""
    return relative(ps.apply(model, plan, weights)(images), ps.masked_logits(model, plan, images, weights))


@pytest.mark.parametrize("name", OURS)
def test_alone(kind: str, name: str) -> None:
    model = make_host(kind)
    plan, weights = alone(model, OURS[name](9))
    images = make_images(3)
    assert off(model, plan, weights, images) < CLOSE
    if name != "keep":  # it can't pass because nothing happens
        with torch.no_grad():
            assert relative(ps.apply(model, plan, weights)(images), model(images)) > 1e-4


@pytest.mark.parametrize("kind", MIXED)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 5))
def test_in_any_mix(kind: str, data: st.DataObject, seed: int) -> None:
    plan, weights = data.draw(mixes(MIXED[kind], list(OURS)))
    assert off(MIXED[kind], plan, weights, make_images(2, seed=seed)) < CLOSE


@pytest.mark.parametrize("kind", MIXED)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_macs_of_any_mix_are_what_torch_counts(kind: str, data: st.DataObject) -> None:
    model = MIXED[kind]
    plan, weights = data.draw(mixes(model, [name for name in STEPS if "threshold" not in name]))
    slim = ps.apply(model, plan, weights)
    assert ps.count_macs(slim) == ps.count_macs(model, plan) == counted(slim)


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
    assert {make(9).kind for make in STEPS.values()} == set(KINDS)


@pytest.mark.parametrize("name", PEERS)
def test_what_has_no_reference_says_so(name: str) -> None:
    model = make_host()
    plan, weights = alone(model, PEERS[name](9))
    with pytest.raises(ps.PlanError, match=f"the step '{name}' has no masked reference"):
        ps.masked_logits(model, plan, make_images(1), weights)
