"""The tensors are timm's own, at the model's real size and channels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.models import VisionTransformer
from torch import Tensor, nn
from torchvision.transforms import ToTensor

from patchslim.data import Images, open_images
from patchslim.errors import DataError


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    values = np.random.RandomState(0).randint(0, 256, (90, 130, 3))
    path = tmp_path / "photo.png"
    Image.fromarray(values.astype(np.uint8)).resize((300, 260)).save(path)
    return path


def small_vit(**options: Any) -> VisionTransformer:
    sizes: dict[str, Any] = {"patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2, **options}
    return VisionTransformer(**sizes)


def only(images: Images) -> Tensor:
    ((pixels, _),) = images.batches(1)
    return pixels[0]


def expected(photo: Path, mode: str = "RGB", **config: Any) -> Tensor:
    create: Any = timm.data.create_transform
    result: Tensor = create(**config, is_training=False)(Image.open(photo).convert(mode))
    return result


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224"])
def test_equals_timm_exactly(photo: Path, name: str) -> None:
    model = timm.create_model(name, depth=1)
    resolve: Any = timm.data.resolve_model_data_config
    images = open_images(photo.parent, model=model)
    assert torch.equal(only(images), expected(photo, **resolve(model)))
    assert images.image_size == (224, 224)


def test_custom_image_size_is_the_models(photo: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1)
    images = open_images(photo.parent, model=model)
    half = (0.5, 0.5, 0.5)
    wanted = expected(photo, input_size=64, mean=half, std=half, crop_pct=0.9, interpolation="bicubic")
    assert images.image_size == (64, 64)
    assert torch.equal(only(images), wanted)
    assert model(only(images)[None]).shape == (1, 1000)


def test_oblong_images(photo: Path) -> None:
    model = small_vit(img_size=(32, 64), num_classes=3)
    images = open_images(photo.parent, model=model)
    assert images.image_size == (32, 64)
    assert model(only(images)[None]).shape == (1, 3)


def test_one_channel(photo: Path) -> None:
    model = timm.create_model("deit_tiny_patch16_224", in_chans=1, img_size=32, depth=1)
    pixels = only(open_images(photo.parent, model=model))
    mean, std = (0.485 + 0.456 + 0.406) / 3, (0.229 + 0.224 + 0.225) / 3
    wanted = expected(photo, "L", input_size=32, mean=(mean,), std=(std,), crop_pct=0.9, interpolation="bicubic")
    assert pixels.shape == (1, 32, 32)
    assert torch.allclose(pixels, wanted, atol=1e-6)
    assert model(pixels[None]).shape == (1, 1000)


def test_a_model_without_pretrained_cfg(photo: Path) -> None:
    model = small_vit(img_size=48)
    assert not hasattr(model, "pretrained_cfg")
    pixels = only(open_images(photo.parent, model=model))
    assert torch.equal(pixels, expected(photo, input_size=48, interpolation="bicubic"))


def test_a_model_that_says_nothing_gets_timms_defaults(photo: Path) -> None:
    assert only(open_images(photo.parent, model=nn.Linear(1, 1))).shape == (3, 224, 224)


def test_other_channel_counts_are_refused(photo: Path) -> None:
    with pytest.raises(DataError, match="4 channels"):
        open_images(photo.parent, model=small_vit(in_chans=4))


def test_without_a_model_only_to_tensor(photo: Path) -> None:
    images = open_images(photo.parent)
    assert images.image_size == (260, 300)
    assert torch.equal(only(images), ToTensor()(Image.open(photo)))


def test_without_a_model_sizes_must_agree(photo: Path) -> None:
    Image.new("RGB", (300, 261)).save(photo.parent / "second.png")
    with pytest.raises(DataError, match=r"second\.png is 300x261 pixels, the first one 300x260"):
        list(open_images(photo.parent).batches(2))
    model = small_vit(img_size=32)
    assert sum(len(labels) for _, labels in open_images(photo.parent, model=model).batches(2)) == 2


@pytest.mark.parametrize("channels", [1, 3])
def test_picture_is_what_the_model_sees(photo: Path, channels: int) -> None:
    model = small_vit(img_size=32, in_chans=channels)
    picture = open_images(photo.parent, model=model).picture(0)
    # timm's default crop: shorter side to 32 / 0.875 = 36, then the middle 32x32
    mode = "RGB" if channels == 3 else "L"
    resized = Image.open(photo).convert(mode).resize((41, 36), Image.Resampling.BICUBIC)
    left, top = round((41 - 32) / 2), round((36 - 32) / 2)
    wanted = np.array(resized.crop((left, top, left + 32, top + 32)).convert("RGB"))
    assert picture.dtype == torch.uint8
    assert np.array_equal(picture.permute(1, 2, 0).numpy(), wanted)


def test_pictures_that_are_not_there(photo: Path) -> None:
    (photo.parent / "z.png").write_bytes(b"bad")
    images = open_images(photo.parent)
    for index in (-1, 2):
        with pytest.raises(DataError, match="no image"):
            images.picture(index)
    with pytest.raises(DataError, match=r"z\.png"):
        images.picture(1)
