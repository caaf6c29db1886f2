"""The digits: the split, the pictures, and life without scikit-learn."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import patchslim
from patchslim.data import Images, open_images
from patchslim.errors import DataError


def everything(images: Images) -> tuple[Tensor, Tensor]:
    pixels, labels = zip(*images.batches(512), strict=True)
    return torch.cat(pixels), torch.cat(labels)


def bunch() -> Any:
    return load_digits()


def test_the_parts_are_the_whole() -> None:
    train, test = open_images("digits"), open_images("digits", split="test")
    assert (len(train), len(test)) == (1297, 500)
    assert train.labelled
    assert train.image_size == (32, 32)
    (train_pixels, train_labels), (test_pixels, test_labels) = everything(train), everything(test)
    assert train_pixels.shape == (1297, 3, 32, 32)
    target = torch.tensor(bunch().target)
    counts = target.bincount()
    assert torch.equal(train_labels.bincount() + test_labels.bincount(), counts)
    # stratified: each class gives its share of the 500, give or take the rounding
    assert ((test_labels.bincount() - counts * 500 / 1797).abs() < 1).all()
    # no picture is in both, and none is lost
    seen, held_out = ({row.tobytes() for row in part.numpy()} for part in (train_pixels, test_pixels))
    assert seen.isdisjoint(held_out)
    assert len(seen | held_out) == len({row.tobytes() for row in bunch().images})


def test_split_stays_whatever_the_seed() -> None:
    assert open_images("digits", seed=1).fingerprint == open_images("digits", seed=2).fingerprint
    first, second = (open_images("digits", seed=seed, limit=50) for seed in (1, 2))
    assert len(first) == 50
    assert first.fingerprint != second.fingerprint
    assert torch.equal(everything(first)[0], everything(open_images("digits", seed=1, limit=50))[0])


def test_suffix_beats_the_argument() -> None:
    train, test = open_images("digits").fingerprint, open_images("digits", split="test").fingerprint
    assert train != test
    assert open_images("digits:train", split="test").fingerprint == train
    assert open_images("digits:test").fingerprint == test
    with pytest.raises(DataError, match="digits:valid"):
        open_images("digits:valid")


def test_pictures_are_the_digits_enlarged() -> None:
    images = open_images("digits:test", limit=40)
    pixels, labels = everything(images)
    small = torch.nn.functional.avg_pool2d(pixels, 4)[:, 0] * 16
    data = bunch()
    originals = torch.tensor(data.images, dtype=torch.float32)
    # the nearest original of each shrunken picture must be close and carry the same label
    distance = torch.cdist(small.flatten(1), originals.flatten(1))
    nearest = distance.argmin(1)
    assert distance.min(1).values.max() < 12
    assert torch.equal(torch.tensor(data.target)[nearest], labels)
    assert len(set(nearest.tolist())) == 40


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'patchslim\[digits\]'"):
        open_images("digits")


def test_a_folder_called_digits_can_still_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    for source in ("./digits", Path("digits")):
        with pytest.raises(DataError, match="no image in the folder"):
            open_images(source)
    assert len(open_images("digits")) == 1297


def test_import_stays_light() -> None:
    heavy = ("sklearn", "matplotlib", "timm", "torchvision", "pandas")
    # an empty stand-in for the package, so that only what patchslim.data itself imports is seen
    code = (
        "import sys, types; package = types.ModuleType('patchslim'); "
        f"package.__path__ = {list(patchslim.__path__)}; sys.modules['patchslim'] = package; "
        f"import patchslim.data; print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
