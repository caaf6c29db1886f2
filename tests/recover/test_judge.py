"""What a recovery reports of held-out images, against plain arithmetic on the two networks' outputs."""

import math

import pytest
import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.hosts import open_host
from patchslim.recover import RecoverConfig
from patchslim.recover.images import Parts
from patchslim.recover.losses import Distillation, measure
from patchslim.recover.networks import open_student
from small import make_host, make_images, plan_for


def judged(model: nn.Module, slim: nn.Module, images: Tensor, **settings: float) -> dict[str, float | None]:
    """What `measure` says of some images; they come in uneven batches."""
    source, config = tensor_images(images), RecoverConfig(**settings)  # type: ignore[arg-type]
    loss = Distillation(open_host(model), None, config)
    return measure(open_student(slim), loss, Parts(source, source, 4), config)


def slimmed(model: nn.Module) -> nn.Module:
    return ps.apply(model, *plan_for(model, "drop"))


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_kl_and_agreement_are_those_of_the_outputs(temperature: float) -> None:
    model, images = make_host(), make_images(7)
    slim = slimmed(model)
    found = judged(model, slim, images, temperature=temperature)
    with torch.no_grad():
        p, q = model(images).double().softmax(1), slim(images).double().softmax(1)
    kl = sum(float(a) * math.log(float(a) / float(b)) for a, b in zip(p.flatten(), q.flatten(), strict=True)) / 7
    assert found["kl"] == pytest.approx(kl, rel=1e-4)
    assert found["agreement"] == pytest.approx(100 * float((p.argmax(1) == q.argmax(1)).double().mean()))


def test_kl_is_the_loss_without_temperature_and_features() -> None:
    model, images = make_host(), make_images(6)
    found = judged(model, slimmed(model), images, temperature=1.0, feature_weight=0.0)
    assert found["kl"] == pytest.approx(found["loss"], rel=1e-5)


def test_without_classes_there_is_a_loss_only() -> None:
    model = make_host(num_classes=0)
    found = judged(model, slimmed(model), make_images(3))
    assert (found["kl"], found["agreement"]) == (None, None)
    assert found["loss"] is not None
    assert found["loss"] > 0
