"""Our methods and the paper's: the steps that they take, what their settings change, the error that they tell."""

from functools import cache
from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.errors import MethodError
from patchslim.methods import DPS, PS, Cover, Drop, Fitted, Merge, Predict, ToMe
from patchslim.plan import SlimPlan
from small import make_host, make_images, read_by, relative
from tasks import made, task_of

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")
IMAGES = 12


@cache
def fitted(method: Any, kind: str = "class", ratio: float = 0.6) -> tuple[SlimPlan, Fitted]:
    """What a method makes of a small host, once for all tests that ask."""
    found, _ = made(method, task_of(make_host(kind), make_images(IMAGES), ratio))
    assert found.plan is not None
    return found.plan, found


TAKES: list[tuple[Any, set[str]]] = [
    (Merge(), {"keep", "merge"}),
    (Cover(), {"keep", "cover"}),
    (Drop(), {"keep", "slice"}),
    (Predict(epochs=2), {"keep", "predict"}),
    (Predict(removed="drop", epochs=2), {"keep", "predict"}),
    (Predict(threshold=True, epochs=2), {"keep", "threshold"}),
    (DPS(epochs=2), {"keep", "predict"}),
    (PS(step=2, tune_epochs=0), {"keep", "slice"}),
    (PS(step=2, tune_epochs=0, carry=True), {"carry"}),
]


@pytest.mark.parametrize(("method", "kinds"), TAKES)
def test_steps_of_each_method(method: Any, kinds: set[str]) -> None:
    """Where patches are read to the end; else the last block only slices down to the prefix."""
    for kind, ending in (("mean", set[str]()), ("class", {"slice"})):
        plan, _ = fitted(method, kind)
        assert kinds - {"keep"} <= {step.kind for step in plan.steps} <= kinds | ending


@torch.no_grad()
def error_by_hand(plan: SlimPlan, weights: Any, kind: str) -> float:
    """The mean over images of ‖f̂ − f‖² / ‖f‖² of what the head reads."""
    model, images = make_host(kind), make_images(IMAGES)
    slim = ps.apply(model, plan, weights)
    return sum(relative(read_by(slim, one), read_by(model, one)) ** 2 for one in images.split(1)) / IMAGES


@pytest.mark.parametrize("method", [Merge(), Cover(), Drop(), Predict(epochs=2), Predict(threshold=True, epochs=2)])
@pytest.mark.parametrize("kind", ["class", "mean"])
def test_the_error_it_tells_is_the_models(method: Any, kind: str) -> None:
    plan, found = fitted(method, kind)
    assert found.errors.keys() == {"readout"} == plan.provenance["errors"].keys()
    assert found.errors["readout"] == pytest.approx(error_by_hand(plan, found.weights, kind), rel=1e-4)


def test_as_many_blocks_choose_as_a_setting_allows() -> None:
    """One can remove almost everything; none: as many as pay."""
    for make in (Merge, Cover):
        assert [len(fitted(make(blocks=1), ratio=ratio)[0].choosing) for ratio in (0.75, 0.5)] == [1, 1]
        assert len(fitted(make(blocks=None), ratio=0.45)[0].choosing) >= 2


def test_what_leaves_and_what_joins() -> None:
    joins = {method: {step.sizes for step in fitted(method, "mean")[0].steps} for method, _ in TAKES}
    assert all(True in joins[method] for method in (Merge(), Cover(), Predict(epochs=2)))
    assert joins[Predict(removed="drop", epochs=2)] == joins[Predict(threshold=True, epochs=2)] == {False}
    assert {getattr(step, "selector", "pool") for step in fitted(DPS(epochs=2))[0].steps} == {"pool"}


def test_tuning_gives_weights_under_the_hosts_names() -> None:
    plan, found = fitted(PS(step=4, tune_epochs=2, learning_rate=1e-3), "mean")
    assert set(found.weights) < set(make_host("mean").state_dict())
    untuned = fitted(PS(step=4, tune_epochs=0), "mean")
    assert not untuned[1].weights
    assert error_by_hand(plan, found.weights, "mean") < error_by_hand(plan, {}, "mean")


@pytest.mark.parametrize("method", [Merge(), Cover(), Drop(), Predict(), DPS(), PS()])
def test_a_sketch_has_the_counts_and_steps_without_an_image(method: Any) -> None:
    info = ps.inspect(make_host())
    plan = method.sketch(info, [12, 12, 9, 0])
    assert plan.counts == (12, 12, 9, 0)
    assert [step.kind for step in plan.steps][1::2] == ["keep", "slice"]
    with pytest.raises(MethodError, match="tome has no plan for given counts"):
        ToMe().sketch(info, [12, 12, 9, 0])


def test_the_same_twice() -> None:
    """Nothing but the seed decides."""
    for method in (Merge(), Predict(epochs=2)):
        plan, found = fitted(method)
        again, _ = made(method, task_of(make_host(), make_images(IMAGES), 0.6))
        other, _ = made(method, task_of(make_host(), make_images(IMAGES), 0.6, seed=1))
        assert again.plan == plan
        assert all(torch.equal(again.weights[name], value) for name, value in found.weights.items())
        assert other.plan is not None
        assert other.plan.weights != plan.weights


def test_labels_are_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that has none to give serves as well."""
    task = task_of(make_host(), make_images(IMAGES), 0.6)
    whole = task.images.batches
    monkeypatch.setattr(task.images, "batches", lambda *how, **more: ((own, None) for own, _ in whole(*how, **more)))
    assert made(Merge(), task)[0].plan == fitted(Merge())[0]
