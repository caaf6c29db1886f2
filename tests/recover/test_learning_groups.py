"""What learns, and how fast."""

import pytest
import torch

import patchslim as ps
from patchslim.recover import RecoverConfig, recover
from patchslim.recover.learning import by_layer, choose_learning_, is_vector, two_rates
from patchslim.recover.networks import open_student
from patchslim.slimmed import own_keys
from small import PYRAMID, make_host, make_images, plan_for, plan_of
from step_plans import STEPS, alone

LEARNING = {"epochs": 3, "block_epochs": 1, "batch_size": 8, "block_batch_size": 8, "learning_rate": 1e-4}


@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_every_learning_parameter_is_in_one_group_and_vectors_learn_faster(decay: float) -> None:
    model = make_host()
    student = open_student(ps.apply(model, plan_of(model, PYRAMID)))
    learning = choose_learning_(student, classifier=False)
    config = RecoverConfig(weight_decay=0.05, layer_decay=decay)
    plain, fast = (by_layer(student.model, config, factor) for factor in (1.0, 30.0))
    assert sorted(id(p) for group in fast for p in group["params"]) == sorted(map(id, learning))
    before = {id(p): group["lr_scale"] for group in plain for p in group["params"]}
    for group in fast:
        for parameter in group["params"]:
            assert group["lr_scale"] == pytest.approx(before[id(parameter)] * (30 if is_vector(parameter) else 1))
            assert group["weight_decay"] == (0.0 if is_vector(parameter) else 0.05)


def test_two_rates() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3,), (3, 2), (1, 1, 3))]
    assert two_rates(parameters[1:], 0.5, 10.0) == [{"params": parameters[1:], "lr": 0.5}]
    vectors, others = two_rates(parameters, 0.5, 10.0)
    assert vectors == {"params": parameters[:1], "lr": 5.0}
    assert others == {"params": parameters[1:], "lr": 0.5}


def test_without_labels_the_classifier_and_what_steps_own_stay_as_they_are() -> None:
    model = make_host()
    plan, weights = plan_for(model, "predict")
    slim = ps.apply(model, plan, weights)
    found = recover(slim, model, make_images(96), RecoverConfig(**LEARNING)).model  # type: ignore[arg-type]
    before, after = slim.state_dict(), found.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert not [name for name in changed if name.startswith("head.") or ".step." in name]
    assert {"blocks.0.norm1.weight", "blocks.0.attn.qkv.weight", "norm.bias"} <= changed


@pytest.mark.parametrize("name", STEPS)
def test_of_what_steps_own_only_positions_of_pools_learn(name: str) -> None:
    """The plan has the fingerprint of all else: distances, token selectors, predictors."""
    model = make_host()
    student = open_student(ps.apply(model, *alone(model, STEPS[name](10))).requires_grad_(True))
    learning = set(map(id, choose_learning_(student, classifier=True)))
    learns = {key for key, parameter in student.model.named_parameters() if id(parameter) in learning}
    own = own_keys(student.model)
    assert learns & own == {key for key in own if key.endswith(".position")}
    assert learns >= set(dict(student.model.named_parameters())) - own


def test_with_labels_the_classifier_learns() -> None:
    model = make_host()
    student = open_student(ps.apply(model, plan_of(model, PYRAMID)))
    learning = {id(parameter) for parameter in choose_learning_(student, classifier=True)}
    assert learning == {id(parameter) for parameter in student.model.parameters()}
