"""The distillation loss against closed forms, and its gradients in every mode."""

import pytest
import torch

import patchslim as ps
from patchslim.hosts import open_host
from patchslim.recover import RecoverConfig
from patchslim.recover.losses import Distillation, divergence
from patchslim.recover.networks import open_student
from small import KINDS, WAYS, make_host, make_images, plan_for

CPU = torch.device("cpu")


def test_divergence_is_kl_in_nats() -> None:
    teacher, student = torch.randn(5, 7), torch.randn(5, 7)
    p, q = (teacher / 2).softmax(-1), (student / 2).softmax(-1)
    expected = (p * (p / q).log()).sum(-1).mean() * 4
    assert float(divergence(teacher, student, 2.0)) == pytest.approx(float(expected), rel=1e-5)
    assert float(divergence(teacher, teacher, 1.0)) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_host_itself_has_no_loss(kind: str) -> None:
    model = make_host(kind)
    plan = ps.full_plan(model)
    config = RecoverConfig(patch_weight=1.0)
    student = open_student(ps.apply(model, plan))
    loss = Distillation(open_host(model), plan, config).loss(student, make_images(), torch.zeros(3))
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-5)  # rounding, times T² = 16


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_gradients_are_finite_and_reach_all_but_what_steps_own(way: str, amp: str) -> None:
    model = make_host()
    plan, weights = plan_for(model, way)
    config = RecoverConfig(patch_weight=1.0, amp=amp)  # type: ignore[arg-type]
    student = open_student(ps.apply(model, plan, weights))
    images = make_images(4)
    images[0] = 0
    with config.autocast(CPU):
        Distillation(open_host(model), plan, config).loss(student, images, torch.zeros(4)).backward()
    for name, parameter in student.model.named_parameters():
        if ".step." in name:
            assert parameter.grad is None
        else:
            assert parameter.grad is not None, name
            assert bool(parameter.grad.isfinite().all()), name


def test_merging_tokens_of_length_zero_has_finite_gradients() -> None:
    """Means of nothing: tokens that are all zero meet in every merge."""
    model = make_host()
    plan, weights = plan_for(model, "merge")
    student = open_student(ps.apply(model, plan, weights))
    tokens = torch.zeros(2, 17, 24, requires_grad=True)
    x = tokens
    for block in student.blocks:
        x = block(x)
    student.features(x).sum().backward()
    assert tokens.grad is not None
    assert bool(tokens.grad.isfinite().all())


def test_without_a_head_features_are_compared() -> None:
    model = make_host(num_classes=0)
    plan, weights = plan_for(model, "drop")
    slim = ps.apply(model, plan, weights)
    images = make_images()
    loss = Distillation(open_host(model), plan, RecoverConfig(feature_weight=0.0))
    found = loss.loss(open_student(slim), images, torch.zeros(3))
    with torch.no_grad():
        own, taught = slim(images), model(images)
    expected = ((own - taught) ** 2).sum(1) / (taught**2).sum(1)
    assert float(found.detach()) == pytest.approx(float(expected.mean()), rel=1e-4)
