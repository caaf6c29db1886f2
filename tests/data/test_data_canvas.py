"""Views cut from pictures that were read once: crops against their definition, pixels against torchvision's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional as tv

import patchslim as ps
from patchslim.data.canvas import RATIOS, Canvases, canvas_size, crops
from patchslim.data.transform import Style, training_transform_for
from patchslim.data.views import Order
from patchslim.errors import DataError

SIZE = 32


@pytest.fixture
def model() -> Any:
    return timm.create_model("vit_tiny_patch16_224", img_size=SIZE, depth=1)


def smooth(width: int, height: int, phase: float) -> Image.Image:
    """A picture without detail, so that ways of resampling agree."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    channels = [127 + 100 * np.sin(3 * x + phase), 127 + 100 * np.cos(2 * y + phase), 255 * x * y]
    return Image.fromarray(np.stack(channels, axis=2).round().astype(np.uint8))


def folder(path: Path, shapes: list[tuple[int, int]]) -> Path:
    path.mkdir()
    for number, (width, height) in enumerate(shapes):
        smooth(width, height, number).save(path / f"{number:02}.png")
    return path


@given(
    st.lists(st.floats(0.2, 5), min_size=1, max_size=8),
    st.floats(0.05, 1),
    st.booleans(),
    st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_crops_lie_within_the_picture_and_have_the_shape_asked_for(
    ratios: list[float], scale: float, flip: bool, seed: int
) -> None:
    shapes = torch.tensor(ratios)
    x, y, width, height = crops(shapes, Style(scale, flip), torch.Generator().manual_seed(seed)).unbind(1)
    assert flip or (width > 0).all()
    width = width.abs()
    for begin, side in ((x, width), (y, height)):
        assert (begin >= 0).all()
        assert (side > 0).all()
        assert (begin + side <= 1 + 1e-5).all()
    shape = shapes * width / height  # in pixels
    assert (shape >= RATIOS[0] - 1e-4).all()
    assert (shape <= RATIOS[1] + 1e-4).all()
    # An area below the scale only where nothing of a long picture fits: then as much as there is.
    small = width * height < scale - 1e-4
    assert ((width[small] > 1 - 1e-5) | (height[small] > 1 - 1e-5)).all()


def test_crops_are_spread_evenly() -> None:
    boxes = crops(torch.ones(20_000), Style(0.3, True), torch.Generator().manual_seed(0))
    area = boxes[:, 2].abs() * boxes[:, 3]
    assert area.min() >= 0.3 - 1e-5
    assert abs(float((boxes[:, 2] < 0).double().mean()) - 0.5) < 0.02
    # Of tries within the picture every share of the area is as likely, but large ones fit less often.
    assert 0.5 < float(area.mean()) < 0.65
    middle = boxes[:, 0] + boxes[:, 2].abs() / 2
    assert abs(float(middle.mean()) - 0.5) < 0.01


@pytest.mark.parametrize("shape", [(48, 48), (80, 40), (40, 90)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_view_is_the_crop_of_the_picture(shape: tuple[int, int], mirrored: bool, tmp_path: Path, model: Any) -> None:
    source = ps.open_images(folder(tmp_path / "a", [shape]), model=model)
    transform = training_transform_for(model, Style())
    canvases = source.canvases(torch.device("cpu"))
    assert float(canvases.ratios[0]) == pytest.approx(shape[0] / shape[1])
    x, y, width, height = 0.2, 0.1, 0.6, 0.7
    box = torch.tensor([[x, y, -width if mirrored else width, height]])
    found = transform.undo(canvases.cut(torch.tensor([0]), box, transform)[0]).float()
    picture = torch.from_numpy(np.array(smooth(*shape, 0))).permute(2, 0, 1)
    cut = [round(y * shape[1]), round(x * shape[0]), round(height * shape[1]), round(width * shape[0])]
    wanted = tv.resized_crop(picture, *cut, [SIZE, SIZE], antialias=True)
    wanted = wanted.flip(2) if mirrored else wanted
    assert (found - wanted).abs().mean() < 2  # of 255
    assert (found.flip(2) - wanted).abs().mean() > 5  # and the other way round it is another picture


def test_views_depend_on_seed_epoch_and_image_only(tmp_path: Path, model: Any) -> None:
    source = ps.open_images(folder(tmp_path / "a", [(40, 50)] * 5), model=model)
    transform, style = training_transform_for(model, Style()), Style()

    def views(order: Order) -> list[Any]:
        return list(source.canvases(torch.device("cpu")).views(transform, style, order))

    whole = views(Order(5, 2, epochs=3, seed=1))
    assert [len(labels) for _, labels in whole] == [2] * 6
    later = views(Order(5, 2, epochs=3, seed=1, first=1))
    for (x, labels), (again, same) in zip(whole[2:], later, strict=True):
        assert torch.equal(x, again)
        assert torch.equal(labels, same)
    assert not torch.equal(whole[0][0], views(Order(5, 2, epochs=3, seed=2))[0][0])
    assert x.shape == (2, 3, SIZE, SIZE)


def test_a_picture_that_cannot_be_read_is_left_out(tmp_path: Path, model: Any) -> None:
    path = folder(tmp_path / "a", [(40, 50)] * 5)
    (path / "01.png").write_bytes(b"no picture")
    source = ps.open_images(path, model=model)
    canvases = source.canvases(torch.device("cpu"))
    assert canvases.known.tolist() == [True, False, True, True, True]
    assert source.skipped == 1
    transform = training_transform_for(model, Style())
    batches = list(canvases.views(transform, Style(), Order(5, 5, epochs=2, seed=0)))
    assert [len(labels) for _, labels in batches] == [4, 4]


def test_nothing_to_read(tmp_path: Path, model: Any) -> None:
    path = folder(tmp_path / "a", [(40, 50)] * 2)
    source = ps.open_images(path, model=model)
    for file in path.iterdir():
        file.write_bytes(b"no picture")
    with pytest.raises(DataError, match="None of the 2 images"):
        source.canvases(torch.device("cpu"))


def test_what_canvases_take(tmp_path: Path, model: Any) -> None:
    source = ps.open_images(folder(tmp_path / "a", [(40, 50)] * 3), model=model)
    found: Canvases = source.canvases(torch.device("cpu"))
    assert found.pixels.nbytes == source.canvas_bytes
    assert canvas_size((224, 224)) == (256, 256)
