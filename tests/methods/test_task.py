"""What methods share: a ladder of settings, the limit whatever it is, what is costly done once."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import patchslim as ps
from patchslim.errors import BudgetError
from patchslim.methods import VTP, EViT, Merge, Power, Task, ToMe, Uniform
from patchslim.plan import SPEED
from patchslim.search import Target
from patchslim.slimmed import plan_of
from patchslim.timing import stopwatch
from small import make_host, make_images, read_by, relative
from tasks import made, task_of
from ticking import Ticking

HOST = make_host()
TASK = Task.of(HOST, make_images(8), Target(macs=0.5))
WHOLE = ps.count_macs(HOST)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), ratio=st.floats(0.01, 0.99))
def test_the_first_of_a_ladder_that_fits(data: st.DataObject, ratio: float) -> None:
    some = st.integers(1, WHOLE) | st.just(int(ratio * WHOLE))
    macs = sorted(data.draw(st.lists(some, min_size=1, max_size=12)), reverse=True)
    fitting = [step for step, own in enumerate(macs) if own <= int(ratio * WHOLE)]
    if fitting:
        assert TASK.first(range(len(macs)), lambda step: macs[step], ratio, "It") == fitting[0]
    else:
        with pytest.raises(BudgetError, match=f"It takes at least {macs[-1] / WHOLE:.3f} of VisionTransformer's MACs"):
            TASK.first(range(len(macs)), lambda step: macs[step], ratio, "It")


def test_what_is_costly_is_done_once_for_all_limits() -> None:
    asked, task = list[int](), task_of(make_host())
    for target in (Target(macs=0.5), Target(macs=0.7), Target(tolerance=0.1)):
        assert task.at(target).once("costly", lambda: asked.append(1)) is None
        assert task.at(target).features is task.features
    assert asked == [1]


def test_a_task_leaves_its_model_alone() -> None:
    model = make_host().train()
    task = Task.of(model, make_images(4))
    assert task.host.model is not model
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not task.host.model.training
    assert not any(parameter.requires_grad for parameter in task.host.model.parameters())
    assert task.fresh_host().model is not task.host.model


def error_of(slim: nn.Module, model: nn.Module, images: torch.Tensor) -> float:
    """The mean over images of ‖f̂ − f‖² / ‖f‖² of what the head reads."""
    with torch.no_grad():
        pairs = [(read_by(slim, image), read_by(model, image)) for image in images.split(1)]
    return sum(relative(*pair) ** 2 for pair in pairs) / len(pairs)


@pytest.mark.parametrize("method", [ToMe(), EViT(), Uniform(), Power(epochs=3)])
def test_a_tolerance_is_met_with_the_fewest_macs(method: Any) -> None:
    """By halves of the ratio: the plan is within it, and at a ratio a little lower it is not."""
    model, images, tolerance = make_host(), make_images(8), 0.03
    slim = ps.slim(model, images, method, tolerance=tolerance, batch_size=8)
    assert error_of(slim, model, images) <= tolerance
    ratio = ps.count_macs(slim) / WHOLE
    lower, _ = made(method, task_of(model, images, ratio - 2**-7))
    assert lower.plan is not None
    assert error_of(ps.apply(model, lower.plan, lower.weights), model, images) > tolerance


def test_a_tolerance_that_nothing_meets_is_refused() -> None:
    with pytest.raises(BudgetError, match="No model is within a tolerance of 0; give a larger one, or a MAC ratio"):
        ps.slim(make_host("mean"), make_images(4), ToMe(), tolerance=0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., nn.Module]:
    """A small host that the stopwatch takes to need so long for each token that is computed."""

    def make() -> nn.Module:
        model = make_host()
        monkeypatch.setattr(stopwatch, "perf_counter", Ticking(model, lambda n_in, n: 0.01 * n_in + 0.03 * n, 0.1, 0.1))
        return model

    return make


@pytest.mark.parametrize("method", [ToMe(), EViT(), Uniform()])
def test_a_speedup_is_met_by_methods_that_go_by_macs(method: Any, clock: Any) -> None:
    model = clock()
    slim = ps.slim(model, make_images(4), method, speedup=1.5, batch_size=2)
    plan = plan_of(slim)
    assert plan is not None
    told = plan.provenance[SPEED]
    left = [17, *(1 + count for count in plan.counts)]
    true = (0.1 + 4 * 0.04 * 17) / (0.1 + sum(0.01 * n_in + 0.03 * n for n_in, n in pairwise(left)))
    assert told["predicted"] == pytest.approx(true)
    assert told["asked"] == 1.5
    assert true == pytest.approx(1.5, rel=0.06)  # MACs come in steps


def test_a_model_without_a_plan_has_no_speedup(clock: Any) -> None:
    with pytest.raises(BudgetError, match="without a plan can't be made for a speed-up; give a MAC ratio"):
        ps.slim(clock(), make_images(4), VTP(epochs=1), speedup=1.5, batch_size=2)


def test_a_ratio_out_of_reach_names_what_is_in_reach() -> None:
    with pytest.raises(BudgetError, match=r"A MAC ratio of 0\.2 can't be reached on .* by merge; anything from 0\.\d+"):
        ps.slim(make_host(), make_images(4), Merge(), macs=0.2)
