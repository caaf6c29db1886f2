"""What every method promises: a model within the ratio, MACs that torch counts, a host left alone, a graph that
compiles, weights that learn."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import patchslim as ps
from flops import counted, unfused
from patchslim.errors import BudgetError
from patchslim.hosts import open_slim
from patchslim.methods import DEFAULT, Task, make, names, settings_of
from patchslim.methods.dynamicvit import DynamicViT
from patchslim.recover import RecoverConfig, recover
from patchslim.steps import Step
from patchslim.steps.dynamicvit import KeepPredictor
from small import KINDS, make_host, make_images
from tasks import budget, by_steps, made, says, task_of

NAMES = names()
FREE = [name for name in NAMES if "readout_only" in settings_of(name)] + ["vtp"]  # other papers' methods
OURS = [name for name in NAMES if name not in FREE]
HOSTS = [*KINDS, "t2t", "lv class"]


def quick(name: str, **settings: Any) -> Any:
    """A method with little to learn."""
    return make(name, ({"epochs": 2} if "epochs" in settings_of(name) else {}) | settings)


@cache
def slimmed(name: str, ratio: float = 0.7) -> tuple[nn.Module, dict[str, Tensor], nn.Module]:
    """A host, its weights before, and its slim model, one for all tests that ask."""
    model = make_host()
    before = copy.deepcopy(model.state_dict())
    return model, before, ps.slim(model, make_images(16), quick(name), macs=ratio, batch_size=8)


def check(method: Any, task: Task, ratio: float) -> None:
    """The model takes what it says, and no more than the ratio."""
    found, model = made(method, task)
    assert ps.count_macs(model) == counted(model) <= budget(task, ratio)
    assert found.plan is None or found.plan.provenance["macs"] == counted(model)


@pytest.mark.parametrize("kind", ["class", "mean"])
@pytest.mark.parametrize("name", OURS)
def test_ours_keep_to_the_ratio(kind: str, name: str) -> None:
    for ratio in (0.75, 0.6):
        task = task_of(unfused(kind), make_images(8), ratio)
        check(quick(name), task, ratio)
        with pytest.raises(BudgetError, match=r"0\.01\d* can't be reached|takes at least \d"):
            made(quick(name), task_of(task.host.model, make_images(8), 0.01))


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("name", FREE)
def test_others_keep_to_the_ratio(kind: str, name: str) -> None:
    model = unfused(kind)
    info = ps.inspect(model)
    for share, only in ((0.8, False), (0.65, True)):  # of what is not embedding: a stem is never slimmed
        ratio = share + (1 - share) * info.embed_macs / ps.count_macs(model)
        method = quick(name, **({"readout_only": only} if name != "vtp" else {}))
        try:
            check(method, task_of(model, make_images(8), ratio), ratio)
        except BudgetError:
            assert name == "evit"
            assert not info.reads_class or share < 0.7


def test_the_last_block_may_compute_only_what_is_read() -> None:
    """With readout_only the same network gives the same logits for fewer MACs."""
    model, images = make_host("registers"), make_images()
    info = ps.inspect(model)
    knobs = {"tome": [3, 2, 1, 1], "evit": 0.6, "hvt": [1], "power": [12, 8, 5, 2]}
    for name, knob in knobs.items():
        both: list[list[Step]] = [make(name, {"readout_only": only}).steps(info, knob) for only in (False, True)]
        whole, less = (by_steps(model, steps) for steps in both)
        assert ps.count_macs(less) < ps.count_macs(whole), name
        torch.testing.assert_close(says(whole, images), says(less, images), atol=1e-5, rtol=1e-4)
    predictors = {layer: KeepPredictor(24) for layer in (2, 3, 4)}
    plans = [DynamicViT(readout_only=only).predicting(task_of(model), 0.7, predictors) for only in (False, True)]
    answers = [says(ps.apply(model, own.plan, own.weights), images) for own in plans if own.plan is not None]
    torch.testing.assert_close(*answers, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_host_stays_as_it_was(name: str) -> None:
    model, before, slim = slimmed(name)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(says(model, make_images()), says(make_host(), make_images()))
    assert not torch.equal(says(slim, make_images()), says(model, make_images()))
    assert type(slim) is type(model)
    assert not slim.training


@pytest.mark.parametrize("name", NAMES)
def test_it_says_how_it_came_about(name: str) -> None:
    _, _, slim = slimmed(name)
    plan = getattr(slim, "plan", None)
    if plan is None:
        assert name == "vtp"
        assert open_slim(slim).info.depth == 4
        return
    own = plan.provenance
    assert plan.method == name
    assert own["settings"] == {key: getattr(quick(name), key) for key in settings_of(name)}
    assert (own["images"], own["seed"], own["target"]["macs"]) == (16, 0, 0.7)
    assert own["macs_ratio"] == ps.count_macs(slim) / ps.count_macs(make_host())


@pytest.mark.parametrize("name", [*FREE, DEFAULT])
def test_it_learns(name: str) -> None:
    model, _, slim = slimmed(name, 0.5 if name == DEFAULT else 0.7)  # at 0.7 it loses too little to win any back
    config = RecoverConfig(epochs=3, block_epochs=0, batch_size=8, learning_rate=3e-5, ema=0.0)
    found = recover(slim, model, make_images(32), config)
    assert type(found.model) is type(slim)
    assert found.report["after"]["loss"] < found.report["before"]["loss"]
    assert not torch.equal(says(found.model, make_images()), says(slim, make_images()))


@pytest.mark.parametrize("name", ["hvt", "vtp"])
def test_block_wise_recovery_is_left_out_where_tokens_are_unknown(name: str) -> None:
    model, _, slim = slimmed(name)
    config = RecoverConfig(epochs=1, block_epochs=1, batch_size=8, patch_weight=1.0)
    stages = recover(slim, model, make_images(16), config).report["stages"]
    assert stages[0]["stopped"] == "skipped"
    assert stages[0]["reason"] == "no plan says what its tokens stand for"


def test_a_model_without_a_plan_traces_whole() -> None:
    _, _, slim = slimmed("vtp")
    torch.compiler.reset()
    compiled: Any = torch.compile(slim, fullgraph=True, backend="eager")
    torch.testing.assert_close(says(compiled, make_images()), says(slim, make_images()))
