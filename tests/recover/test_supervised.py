"""Training with labels: what counts as one, and what the recipe does."""

from typing import Any

import pytest
import torch
from timm.layers import DropPath

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.recover import RecoverConfig, recover
from patchslim.recover.losses import set_drop_path_
from small import PYRAMID, WAYS, make_host, make_images, plan_for, plan_of

LABELS = torch.arange(24) % 7
ONLY: dict[str, Any] = {"epochs": 0, "block_epochs": 0, "supervised_epochs": 4, "batch_size": 8, "learning_rate": 1e-3}


@pytest.mark.parametrize("way", WAYS)
def test_labels_are_learnt(way: str) -> None:
    """One class for all images is easily learnt: cross entropy on held-out images falls."""
    model = make_host()
    plan, weights = plan_for(model, way)
    images = tensor_images(make_images(24), torch.full((24,), 3))
    found = recover(ps.apply(model, plan, weights), model, images, RecoverConfig(**ONLY, distill_weight=0.1))
    stage = found.report["stages"][0]
    assert stage["stage"] == "supervised"
    assert stage["after"] < 0.9 * stage["before"]
    assert not any(isinstance(module, DropPath) for module in found.model.modules())


@pytest.mark.parametrize("settings", [{"mixup": 0.0}, {"mixup": 0.0, "cutmix": 0.0}, {"ema": 0.0, "layer_decay": 0.7}])
def test_parts_of_the_recipe_can_be_left_out(settings: dict[str, float]) -> None:
    model = make_host()
    images = tensor_images(make_images(24), LABELS)
    config = RecoverConfig(**ONLY | settings)
    found = recover(ps.apply(model, plan_of(model, PYRAMID)), model, images, config)
    (stage,) = found.report["stages"]
    assert stage["stopped"] == "finished"
    assert stage["after"] <= stage["before"]


def test_unlabelled_images_are_left_out() -> None:
    model = make_host()
    seen: list[Any] = []
    labels = torch.where(torch.arange(24) % 2 == 0, LABELS, -1)
    images = tensor_images(make_images(24), labels)
    config = RecoverConfig(**ONLY | {"batch_size": 1, "supervised_epochs": 1})
    found = recover(ps.apply(model, plan_of(model, PYRAMID)), model, images, config, listen=seen.append)
    assert seen[0]["total"] == 11  # of 12 labelled images one is held out
    assert found.report["images"] == 24


@pytest.mark.parametrize(
    ("classes", "labels", "words"),
    [
        (7, None, "has no labels, so leave supervised training out"),
        (7, LABELS + 3, "a label 9, but the model's head has 7 classes"),
        (0, LABELS, "no classes"),
    ],
)
def test_labels_that_do_not_fit_are_told(classes: int, labels: Any, words: str) -> None:
    model = make_host(num_classes=classes)
    slim = ps.apply(model, plan_of(model, PYRAMID))
    with pytest.raises(ps.DataError, match=words):
        recover(slim, model, tensor_images(make_images(24), labels), RecoverConfig(**ONLY))


def test_drop_path_grows_linearly() -> None:
    model = make_host()
    slim: Any = ps.apply(model, plan_of(model, PYRAMID))
    set_drop_path_(slim.blocks, 0.3)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in slim.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
    images = make_images()
    assert torch.equal(slim(images), ps.apply(model, slim.plan)(images))  # nothing drops outside training
