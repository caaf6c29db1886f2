"""What a slim model can't do as its host does is refused; what it can do, it does."""

from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.hosts import as_host
from small import make_host, make_images
from step_plans import STEPS, alone

DENSE = "no features of single blocks|no features on the grid of patches"


def made(step: str) -> Any:
    model = make_host()
    return ps.apply(model, *alone(model, STEPS[step](9)))


@pytest.mark.parametrize("step", ["keep", "slice", "merge", "threshold"])
def test_masks_are_refused(step: str) -> None:
    slim, images = made(step), make_images()
    with pytest.raises(ps.PlanError, match="takes no attn_mask"):
        slim(images, attn_mask=torch.ones(1, 1, 17, 17, dtype=torch.bool))
    with pytest.raises(ps.PlanError, match="takes no is_causal"):
        slim(images, is_causal=True)
    with pytest.raises(ps.PlanError, match="no hidden states"):
        slim.blocks[0](slim.patch_embed(images), output_hidden_states=True)


@pytest.mark.parametrize("step", ["slice", "cover", "merge", "predict"])
def test_features_on_the_grid_are_refused(step: str) -> None:
    slim, images = made(step), make_images()
    with pytest.raises(ps.PlanError, match=DENSE):
        slim.forward_intermediates(images)
    with pytest.raises(ps.PlanError, match=DENSE):
        slim.get_intermediate_layers(images, 4, reshape=True)
    host: Any = as_host(slim)
    assert len(host.forward_intermediates(images, intermediates_only=True)) == 4


def test_with_everything_kept_features_are_the_hosts() -> None:
    model: Any = make_host()
    slim: Any = ps.apply(model, ps.full_plan(model))
    found = slim.forward_intermediates(make_images(), intermediates_only=True)
    for own, other in zip(found, model.forward_intermediates(make_images(), intermediates_only=True), strict=True):
        assert torch.allclose(own, other, atol=1e-5)


def test_a_pool_of_patches_that_are_gone_is_refused() -> None:
    slim = made("slice")
    assert slim.plan.leaving == 0
    slim.reset_classifier(5, "token")
    assert slim(make_images()).shape == (3, 5)
    slim.reset_classifier(5, "avg")
    with pytest.raises(ps.PlanError, match="'avg' reads patches, and this plan keeps none"):
        slim(make_images())
    assert as_host(slim)(make_images()).shape == (3, 5)  # the host's pool has what it reads


def test_another_image_size_is_refused() -> None:
    slim = made("slice")
    with pytest.raises(ps.PlanError, match="one image size"):
        slim.set_input_size((48, 48))
    with pytest.raises(ps.PlanError, match="takes images of 32×32 pixels and got 16×64"):
        slim(torch.zeros(1, 3, 16, 64))
