"""Token labels of LV-ViT: kept patches learn what the original network says of them, in every way of slimming."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.data import tensor_images
from patchslim.hosts import open_host, open_slim
from patchslim.recover import RecoverConfig, recover
from patchslim.recover.losses import Distillation, Supervised, TokenLabels, has_token_labels
from small import WAYS, make_host, make_images, plan_for


def patch_logits(model: Any, images: Tensor) -> Tensor:
    """By the model's own methods: (B, n, classes)."""
    return model.forward_heads(model.forward_features(images))[1]  # type: ignore[no-any-return]


def expected(model: nn.Module, slim: Any, images: Tensor) -> Tensor:
    """Patch by patch: minus its log probabilities, weighed by the mean label of the patches it stands for."""
    labels, found = patch_logits(model, images).softmax(dim=-1), patch_logits(slim, images).log_softmax(dim=-1)
    losses, sources = [], ps.sources(slim, images)[-1]
    for image in range(len(images)):
        for token, members in enumerate(sources[image]):
            # Carried patches are all there in the host's order; of those only kept ones count.
            place = int(members.nonzero()[0]) if slim.plan.steps[-1].kind == "carry" else token
            losses.append(-(labels[image, members].mean(dim=0) * found[image, place]).sum())
    return torch.stack(losses).mean()


@pytest.mark.filterwarnings("ignore:There is no packed attention")
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_kept_patches_have_the_mean_label_of_what_they_stand_for(way: str) -> None:
    model, images = make_host("lv"), make_images()
    plan, weights = plan_for(model, way)
    slim = ps.apply(model, plan, weights)
    teacher, student = open_host(model), open_slim(slim)
    tokens = TokenLabels(teacher, plan)
    logits, loss = tokens.answers(student, images)
    assert torch.allclose(logits, slim(images), atol=1e-5)
    assert float(loss) == pytest.approx(float(expected(model, slim, images)), rel=1e-5)


def test_who_has_them() -> None:
    for kind, wanted in (("lv", True), ("class", False), ("t2t", False), ("lv class", False)):
        model = make_host(kind)
        plan, _ = plan_for(model, "merge")
        assert has_token_labels(open_host(model), plan) == wanted
        objective = Supervised(7, RecoverConfig(), Distillation(open_host(model), plan, RecoverConfig()))
        assert (objective.tokens is not None) == wanted


@pytest.mark.parametrize("mixup", [0.8, 0.0])
def test_they_count_as_much_as_asked(mixup: float) -> None:
    model, images, labels = make_host("lv"), make_images(4), torch.tensor([1, 2, 3, 4])
    plan, _ = plan_for(model, "drop")
    slim = ps.apply(model, plan)
    losses = []
    for weight in (0.0, 1.0, 2.0):
        config = RecoverConfig(token_weight=weight, mixup=mixup, cutmix=0.0)
        objective = Supervised(7, config, Distillation(open_host(model), plan, config))
        torch.manual_seed(0)
        np.random.seed(0)  # timm mixes by its dice
        losses.append(float(objective.loss(open_slim(slim), images.clone(), labels).detach()))
    assert losses[1] > losses[0]
    assert losses[2] - losses[1] == pytest.approx(losses[1] - losses[0], rel=1e-4)


def test_labels_are_learnt() -> None:
    model = make_host("lv")
    plan, weights = plan_for(model, "merge")
    images = tensor_images(make_images(24), torch.full((24,), 3))
    only: dict[str, Any] = {"epochs": 0, "block_epochs": 0, "supervised_epochs": 4, "batch_size": 8}
    found = recover(ps.apply(model, plan, weights), model, images, RecoverConfig(**only, learning_rate=1e-3))
    stage = found.report["stages"][0]
    assert stage["after"] < 0.9 * stage["before"]
