"""Training views: random, but the same for the same seed, epoch and image, however they are read."""

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data.auto_augment import NAME_TO_OP, AugmentOp

import patchslim as ps
from patchslim.data import Images, tensor_images
from patchslim.data.transform import Style, Transform, training_transform_for, with_a_bit
from patchslim.data.views import Order, seeded
from patchslim.errors import DataError


def folder(path: Path, count: int = 6) -> Path:
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (path / name).mkdir(parents=True)
        for i in range(count // 2):
            pixels = generator.integers(0, 255, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / name / f"{i}.png")
    return path


@pytest.fixture
def model() -> Any:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)


def passes(images: Images, model: Any, order: Order, style: Style | None = None) -> list[Any]:
    return list(images.views(training_transform_for(model, style or Style()), order))


def test_an_order_has_every_image_once_per_epoch() -> None:
    order = Order(10, 3, epochs=3, seed=1)
    batches = list(order)
    assert len(batches) == len(order) == 9
    for epoch in range(3):
        places = [place for batch in batches[epoch * 3 : epoch * 3 + 3] for place in batch]
        assert {own for own, _ in places} == {epoch}
        assert len({image for _, image in places}) == 9
    assert batches[3:] == list(Order(10, 3, epochs=3, seed=1, first=1))
    assert batches != list(Order(10, 3, epochs=3, seed=2))


def test_views_depend_on_seed_epoch_and_image_only(tmp_path: Path, model: Any) -> None:
    source = folder(tmp_path)
    order = Order(6, 2, epochs=2, seed=3)
    first = passes(ps.open_images(source, model=model), model, order)
    random.seed(99)
    torch.manual_seed(99)
    again = passes(ps.open_images(source, model=model, workers=2), model, order)
    for (x, labels), (y, others) in zip(first, again, strict=True):
        assert torch.equal(x, y)
        assert torch.equal(labels, others)
    later = passes(ps.open_images(source, model=model), model, Order(6, 2, epochs=2, seed=3, first=1))
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(first[3:], later, strict=True))
    other = passes(ps.open_images(source, model=model), model, Order(6, 2, epochs=2, seed=4))
    assert not torch.equal(first[0][0], other[0][0])


def test_without_crop_and_flip_a_view_is_the_picture_resized(tmp_path: Path, model: Any) -> None:
    for i in range(2):
        Image.new("RGB", (64, 64), (i * 90, 20, 30)).save(tmp_path / f"{i}.png")
    source = ps.open_images(tmp_path, model=model)
    (images, _), *_ = passes(source, model, Order(2, 2, 1, 0), Style(crop_scale=1.0, flip=False))
    usual, _ = next(source.batches(2))
    assert torch.allclose(images.sort(dim=0).values, usual.sort(dim=0).values, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_everything_at_once_works_with_one_channel_too(tmp_path: Path, channels: int) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, in_chans=channels)
    style = Style(0.3, True, "rand-m9-mstd0.5-inc1", 0.9)
    batches = passes(ps.open_images(folder(tmp_path), model=model), model, Order(6, 3, 8, 0), style)
    assert len(batches) == 16
    for images, labels in batches:
        assert images.shape == (3, channels, 32, 32)
        assert images.dtype == torch.float32
        assert bool(images.isfinite().all())
        assert set(labels.tolist()) <= {0, 1}


def test_every_operation_of_timm_works_at_every_magnitude(model: Any) -> None:
    function: Any = training_transform_for(model, Style(rand_augment="rand-n1-p1.0")).function
    (augment,) = (part for part in function.transforms if hasattr(part, "ops"))
    about = augment.ops[0].hparams
    for name in NAME_TO_OP:
        for magnitude in range(11):
            augment.ops = [AugmentOp(name, 1.0, magnitude, about)]
            own = pickle.loads(pickle.dumps(with_a_bit(function)))  # as it goes to a reading process
            assert own(Image.new("RGB", (40, 40), (200, 100, 50))).shape == (3, 32, 32), (name, magnitude)


@pytest.mark.parametrize("words", ["rand-m9-mstd0.5-inc1", "rand-m0", "rand-m20-mmax20-inc1", "original", "augmix-m9"])
def test_thousands_of_views_get_through(words: str, model: Any) -> None:
    transform = training_transform_for(model, Style(rand_augment=words))
    picture = Image.new("RGB", (16, 16), (200, 100, 50))
    with seeded(0):
        for _ in range(4000 if words.endswith("std0.5-inc1") else 400):  # one in 645 failed once, of others more
            transform(picture)


def test_words_that_are_none_of_timms(model: Any) -> None:
    with pytest.raises(DataError, match="timm can't read the augmentation 'sideways'"):
        training_transform_for(model, Style(rand_augment="sideways"))


def fail_on_red(picture: Image.Image) -> torch.Tensor:
    if picture.getpixel((0, 0)) == (255, 0, 0):
        raise RuntimeError("red is too much")
    return torch.zeros(3, 32, 32)


def test_a_transform_that_fails_costs_one_view_and_often_a_sentence(tmp_path: Path) -> None:
    for i in range(12):
        Image.new("RGB", (32, 32), (255, 0, 0) if i in (3, 4) else (0, 9, i)).save(tmp_path / f"{i:02}.png")
    source = ps.open_images(tmp_path)
    transform = Transform(fail_on_red, "RGB", (32, 32), (0.0,) * 3, (1.0,) * 3)
    seen = [len(labels) for _, labels in source.views(transform, Order(12, 4, epochs=1, seed=0))]
    assert sum(seen) == 10
    assert source.skipped == 2
    with pytest.raises(DataError, match=r"0[34]\.png \(its transform fails: red is too much\)"):
        list(source.views(transform, Order(12, 4, epochs=9, seed=0)))


def test_bad_images_make_batches_smaller(tmp_path: Path, model: Any) -> None:
    folder(tmp_path)
    (tmp_path / "a" / "bad.png").write_bytes(b"nothing")
    source = ps.open_images(tmp_path, model=model)
    batches = passes(source, model, Order(7, 1, 2, 0))
    assert [len(labels) for _, labels in batches].count(0) == 2
    assert source.skipped == 1


def test_digits_are_not_mirrored() -> None:
    assert not ps.open_images("digits", limit=4).mirrors
    assert not tensor_images(torch.zeros(2, 3, 4, 4)).mirrors


def test_subsets(tmp_path: Path, model: Any) -> None:
    source = ps.open_images(folder(tmp_path), model=model)
    part = source.subset([1, 4])
    assert part.labels == [0, 1]
    assert part.fingerprint != source.fingerprint
    whole, few = next(source.batches(6))[0], next(part.batches(6))[0]
    assert torch.equal(whole[[1, 4]], few)
    tensors = tensor_images(whole, torch.arange(6)).subset([2, 3])
    assert tensors.labels == [2, 3]


def test_seeded_gives_random_numbers_back() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), float(torch.rand(1))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with seeded(4, 2):
        inside = random.random(), np.random.rand(), float(torch.rand(1))
    with seeded(4, 2):
        assert inside == (random.random(), np.random.rand(), float(torch.rand(1)))
    assert expected == (random.random(), np.random.rand(), float(torch.rand(1)))
