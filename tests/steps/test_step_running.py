"""Every kind of step where models are used: traced whole, under autocast, in training, in double precision."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.slimmed import frozen_keys, own_keys
from patchslim.steps.slice import Slice
from small import make_host, make_images, relative
from step_plans import STEPS, alone, owning

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")
CHAINS = (  # as many kinds in one model as can follow one another: tracing takes its time
    ("slice", "carry", "keep"),
    ("cover", "merge", "predict, merging, context"),
    ("predict, merging", "predict, merging, pool", "tome"),
    ("merge, dropping", "predict, pool", "predict"),
    ("predict, context", "power", "dynamicvit"),
    ("evit", "pool", "keep"),
)
SEPARATE = ("slice", "carry", "merge, dropping", "predict", "threshold", "threshold, context")  # no token is a mean


def made(name: str, model: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
    plan, weights = alone(model, STEPS[name](9))
    return ps.apply(model, plan, weights), weights


@pytest.mark.parametrize("chain", CHAINS)
@torch.no_grad()
def test_traces_whole(chain: tuple[str, ...]) -> None:
    """No graph break, so that a compiler takes it as it is."""
    model, images = make_host(), make_images(2)
    steps = [STEPS[name](n) for name, n in zip(chain, (12, 9, 7), strict=True)]
    plan, weights = owning(model, [*steps, Slice(n=0)], range(16))
    slim = ps.apply(model, plan, weights)
    torch.compiler.reset()
    compiled: Any = torch.compile(slim, fullgraph=True, backend="eager")
    assert relative(compiled(images), slim(images)) < 1e-5


def test_every_rectangular_step_is_traced() -> None:
    assert {name for chain in CHAINS for name in chain} == {name for name in STEPS if STEPS[name](9).rectangular}


@pytest.mark.parametrize("name", STEPS)
@torch.no_grad()
def test_autocast_stays_close(name: str) -> None:
    """Half precision may choose another patch here and there, so not every image is as close."""
    slim, _ = made(name, make_host("registers"))
    images = make_images(12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = slim(images)
    assert rounded.dtype == torch.bfloat16
    errors = [relative(*pair) for pair in zip(rounded.float(), slim(images), strict=True)]
    assert sorted(errors)[6] < 0.05


@pytest.mark.parametrize("name", STEPS)
def test_all_weights_learn_but_those_that_choose(name: str) -> None:
    slim, _ = made(name, make_host())
    slim.train()(make_images(2)).square().sum().backward()
    frozen = set(frozen_keys(slim))
    without = {key for key, parameter in slim.named_parameters() if parameter.grad is None}
    assert frozen <= without == own_keys(slim)  # what else a step owns learns in a recovery only


@pytest.mark.parametrize("name", SEPARATE)
def test_gradients_are_those_of_the_masked_reference(name: str) -> None:
    """Along a random direction, by differences of the reference's loss in double precision."""
    model, images, step = make_host().double(), make_images(2).double(), 1e-6
    plan, weights = alone(model, STEPS[name](9))
    slim, generator = ps.apply(model, plan, weights), torch.Generator().manual_seed(0)
    slim(images).square().sum().backward()
    host, along, change = dict(model.named_parameters()), 0.0, {}
    for key, parameter in slim.named_parameters():
        if parameter.grad is not None:
            change[key] = step * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            along += float((parameter.grad * change[key]).sum())
    losses = []
    for sign in (1, -1):
        moved = make_host().double()
        moved.load_state_dict({key: own + sign * change.get(key, 0.0) for key, own in host.items()})
        losses.append(float(ps.masked_logits(moved, plan, images, weights).square().sum()))
    assert (losses[0] - losses[1]) / 2 == pytest.approx(along, rel=1e-5)
