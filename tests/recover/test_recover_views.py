"""Where training views come from: pictures kept on the device, or read anew."""

from typing import Any

import pytest
import timm
import torch

import patchslim as ps
from patchslim.data import Images, tensor_images
from patchslim.data.canvas import Canvases
from patchslim.data.views import Order
from patchslim.hosts import open_slim
from patchslim.recover.config import RecoverConfig
from patchslim.recover.images import Views, roomy, views_for

CPU = torch.device("cpu")


@pytest.fixture
def slim() -> Any:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1).eval()
    return ps.apply(model, ps.full_plan(model))


def views_of(slim: Any, source: Any, config: RecoverConfig, strong: bool = False) -> Views:
    return views_for(open_slim(slim), source, config, strong)


@pytest.mark.parametrize(("gib", "strong", "kept"), [(4.0, False, True), (0.0, False, False), (4.0, True, False)])
def test_pictures_are_kept_where_they_fit(
    gib: float, strong: bool, kept: bool, slim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ps.open_images("digits", model=slim, limit=10)
    read: list[int] = []
    real = Images.canvases

    def noted(self: Images, device: torch.device) -> Canvases:
        read.append(len(self))
        return real(self, device)

    monkeypatch.setattr(Images, "canvases", noted)
    views = views_of(slim, source, RecoverConfig(pictures_gib=gib), strong=strong)
    batches = list(views.batches(source, Order(10, 4, epochs=2, seed=0), CPU))
    assert [tuple(images.shape) for images, _ in batches] == [(4, 3, 32, 32)] * 4
    assert read == ([10] if kept else [])


def test_a_digit_is_not_mirrored(slim: Any) -> None:
    source = ps.open_images("digits", model=slim, limit=4)
    style = views_of(slim, source, RecoverConfig()).style
    assert not style.flip
    assert style.crop_scale >= 0.8


def test_tensors_stay_as_they_are(slim: Any) -> None:
    images = torch.randn(6, 3, 32, 32)
    source = tensor_images(images)
    ((found, _),) = views_of(slim, source, RecoverConfig()).batches(source, Order(6, 6, epochs=1, seed=0), CPU)
    assert torch.equal(found.flatten(1).sum(1).sort().values, images.flatten(1).sum(1).sort().values)


def test_a_cpu_keeps_its_own() -> None:
    assert roomy(CPU, 2**60) == CPU
