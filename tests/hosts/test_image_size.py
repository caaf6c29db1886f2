"""A plan is for images of one size: another that makes as many patches is refused, whichever way it would come in."""

from typing import Any

import pytest
import torch

import patchslim as ps
from hf_small import MADE, make_hf
from patchslim.hosts import answer_of, with_matmul_embed
from small import make_host, make_images, plan_for, relative


@pytest.mark.parametrize("kind", list(MADE))
@torch.no_grad()
def test_transformers_models_that_could_fit_their_positions(kind: str) -> None:
    model, images = make_hf(kind), torch.randn(2, 3, 16, 64)
    fits = {} if kind.startswith("Dinov2") else {"interpolate_pos_encoding": True}
    model(images, **fits)
    slim: Any = ps.apply(model, plan_for(model, "drop")[0])
    for other in (images, images.mT):
        with pytest.raises(ps.PlanError, match=r"takes images of 32×32 pixels and got (16×64|64×16); .*make another"):
            slim(pixel_values=other, **fits)
    wanted = answer_of(slim(make_images(2)))
    assert relative(answer_of(slim(make_images(2), **fits)), wanted) <= 1e-5


@pytest.mark.parametrize("settings", [{}, {"dynamic_img_pad": True}])
@torch.no_grad()
def test_timm_models_that_take_any_size(settings: dict[str, Any]) -> None:
    model, images = make_host(img_size=(16, 64), dynamic_img_size=True, **settings), torch.randn(2, 3, 16, 64)
    model(images.mT)
    slim = ps.apply(model, plan_for(model, "drop")[0])
    slim(images)
    with pytest.raises(ps.PlanError, match="takes images of 16×64 pixels and got 64×16"):
        slim(images.mT)
    with pytest.raises(ps.PlanError, match="takes images of 16×64 pixels and got 32×32"):
        slim(make_images(2))


def test_the_matrix_product_has_one_size_too() -> None:
    with pytest.raises(ps.PlanError, match="takes images of 32×32 pixels and got 40×40"):
        with_matmul_embed(make_host())(make_images(2, 40))


@torch.no_grad()
def test_a_model_that_was_set_to_another_size() -> None:
    model = make_host(dynamic_img_size=True)
    slim: Any = ps.apply(model, plan_for(model, "drop")[0])
    slim.set_input_size(48)
    for size in (32, 48):
        with pytest.raises(ps.PlanError, match="takes images of 32×32 pixels and is set to 48×48"):
            slim(make_images(2, size))
