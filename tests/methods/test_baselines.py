"""Baselines: the paper's static method with another score, or with the same number of patches in every block."""

import math

import pytest

import patchslim as ps
from patchslim.methods import PS, Attention, Radial, Random, Spread, Uniform
from patchslim.methods.baselines import uniform_counts
from patchslim.plan import SlimPlan, make_plan, static_steps
from small import make_host
from tasks import budget, made, task_of


def plan_by(method: PS, kind: str = "class", ratio: float = 0.6, seed: int = 0) -> SlimPlan:
    plan = made(method, task_of(make_host(kind), ratio=ratio, seed=seed))[0].plan
    assert plan is not None
    return plan


def from_centre(patch: int) -> float:
    return math.hypot(patch // 4 - 1.5, patch % 4 - 1.5)


@pytest.mark.parametrize("kind", ["class", "mean"])
def test_uniform_keeps_the_same_patches_in_every_block(kind: str) -> None:
    model = make_host(kind)
    info, plan = ps.inspect(model), plan_by(Uniform(), kind)
    n = plan.counts[0]
    assert list(plan.counts) == uniform_counts(info, n) == [n] * 3 + [n if info.reads_patches else 0]
    assert len({tuple(kept) for kept in plan.kept if kept}) == 1
    one_more = make_plan(info, static_steps(info, uniform_counts(info, n + 1), "slice"), range(16))
    assert ps.count_macs(model, plan) <= budget(task_of(model), 0.6) < ps.count_macs(model, one_more)


def test_uniform_has_the_settings_of_ps() -> None:
    """Patches that are carried along cost more, and still fit; what is tuned is given back."""
    task = task_of(make_host(), ratio=0.7)
    found, slim = made(Uniform(carry=True), task)
    assert found.plan is not None
    assert {step.kind for step in found.plan.steps} == {"carry"}
    assert ps.count_macs(slim) <= budget(task, 0.7)
    tuned = set(made(Uniform(tune_epochs=1), task)[0].weights)
    assert {name.split(".")[1] for name in tuned} == {"0", "1", "2"}
    assert tuned < set(make_host().state_dict())


def test_radial_keeps_discs() -> None:
    for kept in plan_by(Radial(), "mean").kept:
        gone = set(range(16)) - set(kept)
        assert max(map(from_centre, kept)) <= min(map(from_centre, gone), default=9.0)


def test_random_goes_by_the_seed_alone() -> None:
    first = plan_by(Random(), "mean")
    assert plan_by(Random(), "mean").order == first.order
    assert plan_by(Random(), "mean", seed=1).order != first.order


def test_spread_leaves_no_hole() -> None:
    """Every patch of the image has a kept one next to it as long as a quarter of them stay."""
    for kept in plan_by(Spread(), "mean").kept:
        if len(kept) >= 4:
            near = [min(math.dist(divmod(patch, 4), divmod(other, 4)) for other in kept) for patch in range(16)]
            assert max(near) < 2.3


def test_they_differ_from_the_papers_method_in_the_score_alone() -> None:
    scores = {type(own).__name__: own.score for own in (PS(), Attention(), Random(), Radial(), Spread(), Uniform())}
    assert scores == {
        "PS": "impact",
        "Attention": "attention",
        "Random": "random",
        "Radial": "radial",
        "Spread": "spread",
        "Uniform": "impact",
    }
    assert PS().tune_epochs == 3
    assert {own.tune_epochs for own in (Attention(), Random(), Radial(), Spread(), Uniform())} == {0}
