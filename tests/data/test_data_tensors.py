"""Images in memory behave like images on the disk."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from patchslim.data import ImageSource, as_source, open_images, tensor_images
from patchslim.errors import DataError


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 9), batch_size=st.integers(1, 12))
def test_batches_are_the_tensor_in_order(count: int, batch_size: int) -> None:
    pixels, labels = torch.randn(count, 2, 3, 4), torch.arange(count)
    images = tensor_images(pixels, labels)
    for _ in range(2):
        parts = list(images.batches(batch_size))
        assert all(len(part) == batch_size for part, _ in parts[:-1])
        assert torch.equal(torch.cat([part for part, _ in parts]), pixels)
        assert torch.equal(torch.cat([part for _, part in parts]), labels)
    assert (len(images), images.image_size, images.labelled, images.skipped) == (count, (3, 4), True, 0)


def test_types_are_made_right() -> None:
    pixels = torch.ones(2, 3, 4, 4, dtype=torch.bfloat16, requires_grad=True)
    ((part, labels),) = tensor_images(pixels).batches(2)
    assert part.dtype == torch.float32
    assert not part.requires_grad
    assert labels.tolist() == [-1, -1]
    assert labels.dtype == torch.int64
    assert not tensor_images(pixels).labelled


def test_fingerprint_follows_pixels_shape_and_labels() -> None:
    pixels = torch.zeros(4, 1, 2, 2)
    brighter = pixels.clone()
    brighter[3, 0, 1, 1] = 1e-6
    variants = [
        tensor_images(pixels),
        tensor_images(brighter),
        tensor_images(pixels.reshape(1, 4, 2, 2)),
        tensor_images(pixels, torch.tensor([0, 0, 0, 1])),
    ]
    assert len({images.fingerprint for images in variants}) == 4
    assert tensor_images(pixels.clone()).fingerprint == variants[0].fingerprint
    strided = pixels.permute(0, 1, 3, 2)
    assert tensor_images(strided).fingerprint == variants[0].fingerprint


def test_mistakes() -> None:
    good = torch.zeros(2, 3, 4, 4)
    for shape in [(3, 4, 4), (0, 3, 4, 4)]:
        with pytest.raises(DataError, match="shape"):
            tensor_images(torch.zeros(shape))
    with pytest.raises(DataError, match="uint8"):
        tensor_images(good.to(torch.uint8))
    with pytest.raises(DataError, match="finite"):
        tensor_images(good / 0)
    for labels in (torch.zeros(3, dtype=torch.int64), torch.zeros(2)):
        with pytest.raises(DataError, match="labels"):
            tensor_images(good, labels)
    with pytest.raises(DataError, match="batch size"):
        tensor_images(good).batches(0)


def test_as_source_takes_either(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    opened: ImageSource = open_images(tmp_path)
    assert as_source(opened) is opened
    assert len(as_source(torch.zeros(2, 3, 4, 4))) == 2
    with pytest.raises(DataError, match="come as int, not as tensors"):
        as_source([1, 2])
