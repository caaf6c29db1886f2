"""Folders: what is found, in which order, and with which labels."""

import inspect
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from timm.data.readers.reader_image_folder import find_images_and_targets

from patchslim.data import Images, open_images
from patchslim.errors import DataError, PatchslimWarning


def save(path: Path, level: int = 0, side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (level, level, level)).save(path)


def read_all(images: Images) -> tuple[list[int], list[int]]:
    """The grey level and the label of each image, in order."""
    levels: list[int] = []
    labels: list[int] = []
    for pixels, marks in images.batches(2):
        levels += (pixels[:, 0, 0, 0] * 255).round().int().tolist()
        labels += marks.tolist()
    return levels, labels


def test_class_folders_are_sorted_and_any_depth(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "b.png", 40)
    save(tmp_path / "dog" / "a" / "deep" / "z.PNG", 30)
    save(tmp_path / "cat" / "x.bmp", 10)
    save(tmp_path / "cat-2" / "x.tif", 20)
    save(tmp_path / ".hidden" / "x.png", 99)
    save(tmp_path / "dog" / "._b.png", 99)
    (tmp_path / "readme.txt").write_text("no image")
    images = open_images(tmp_path)
    assert read_all(images) == ([10, 20, 30, 40], [0, 1, 2, 2])
    assert (len(images), images.classes, images.labelled, images.skipped) == (4, 3, True, 0)
    assert images.name == str(tmp_path)
    assert images.image_size == (8, 8)


def test_wnids_get_the_imagenet_index(tmp_path: Path) -> None:
    # tench, goldfish and toilet tissue: the first, second and last of the 1000 classes
    for level, wnid in enumerate(["n15075141", "n01443537", "n01440764"]):
        save(tmp_path / wnid / "x.png", level)
    (tmp_path / "__MACOSX").mkdir()
    assert read_all(open_images(tmp_path)) == ([2, 1, 0], [0, 1, 999])


def test_unknown_wnid_falls_back_to_sorted_order(tmp_path: Path) -> None:
    save(tmp_path / "n15075141" / "x.png", 5)
    save(tmp_path / "n00000001" / "x.png", 6)
    assert read_all(open_images(tmp_path)) == ([6, 5], [0, 1])


def test_numbered_folders_have_their_rank_as_in_timm(tmp_path: Path) -> None:
    for case, names in enumerate((["1", "2", "3"], ["10", "20", "30"], ["01", "2", "10"], [str(i) for i in range(12)])):
        root = tmp_path / str(case)
        for level, name in enumerate(names):
            save(root / name / "x.png", level)
        with pytest.warns(PatchslimWarning, match=f"numbers: {names[0]} … {names[-1]} are read as labels 0 … "):
            images = open_images(root)
        assert read_all(images)[0] == [images.labels[i] for i in range(len(names))]
        found, index = find_images_and_targets(str(root))
        assert dict(zip(images.labels, sorted(names), strict=True)) == {label: name for name, label in index.items()}
        assert len(found) == images.classes == len(names)


def test_numbers_that_are_equal_stay_two_classes(tmp_path: Path) -> None:
    for level, name in enumerate(["01", "1", "2"]):
        save(tmp_path / name / "x.png", level)
    (tmp_path / "__MACOSX").mkdir()
    with pytest.warns(PatchslimWarning):
        assert read_all(open_images(tmp_path)) == ([0, 1, 2], [0, 1, 2])


def test_names_with_numbers_are_in_natural_order_and_that_is_said(tmp_path: Path) -> None:
    for name in ("class2", "class10"):
        save(tmp_path / name / "x.png")
    with pytest.warns(PatchslimWarning, match="label 0 is class2, and not class10, as timm does"):
        assert open_images(tmp_path).labels == [1, 0]


@pytest.mark.parametrize("form", ["list", "words", "file", "windows file"])
def test_classes_can_be_named(tmp_path: Path, form: str) -> None:
    for level, name in enumerate(["dog", "ant", "11"]):
        save(tmp_path / "set" / name / "x.png", level)
    names, file = ["11", "cow", "dog", "ant"], tmp_path / "names.txt"
    file.write_bytes("\n".join(names).encode() if form == "file" else b"\xef\xbb\xbf" + "\r\n".join(names).encode())
    given: Any = {"list": names, "words": ",".join(names)}.get(form, str(file))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = open_images(tmp_path / "set", classes=given)
    assert read_all(images) == ([2, 1, 0], [0, 3, 2])
    assert images.classes == 4


def test_numbers_may_be_the_labels(tmp_path: Path) -> None:
    for name in ["3", "11", "007"]:
        save(tmp_path / name / "x.png", int(name))
    assert read_all(open_images(tmp_path, classes="numbers")) == ([7, 11, 3], [7, 11, 3])
    save(tmp_path / "7" / "x.png")
    with pytest.raises(DataError, match="Two classes of the images are the same number"):
        open_images(tmp_path, classes="numbers")
    save(tmp_path / "cat" / "x.png")
    with pytest.raises(DataError, match="'cat' of the images is no number"):
        open_images(tmp_path, classes="numbers")


def test_classes_that_are_none(tmp_path: Path) -> None:
    save(tmp_path / "set" / "cat" / "x.png")
    file = tmp_path / "names.txt"
    os.mkfifo(tmp_path / "fifo")
    for text, words in (("", "no names"), ("a\n\nb", "empty"), ("a\nb\na", "'a' more than once"), ("a\nb", "'cat' of")):
        file.write_text(text)
        with pytest.raises(DataError, match=words):
            open_images(tmp_path / "set", classes=file)
    file.write_bytes(b"\xff\xfe\x00")
    odd: list[Any] = [file, tmp_path / "gone.txt", tmp_path / "fifo", 5, [1, 2], "", "n01440764,cat,cat"]
    for given in odd:
        with pytest.raises(DataError, match=r"one class name|read as text|more than once"):
            open_images(tmp_path / "set", classes=given)
    with pytest.raises(DataError, match="none of the 1000 classes that imagenet means"):
        open_images(tmp_path / "set", classes="imagenet")


def test_what_cannot_be_entered_or_read_is_bad_and_never_waited_for(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "x.png", 7)
    (tmp_path / "cat" / "self").symlink_to("self")
    (tmp_path / "cat" / "self.png").symlink_to("self.png")
    (tmp_path / "cat" / "endless.png").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    (tmp_path / "dog").symlink_to("dog")
    images = open_images(tmp_path)
    assert read_all(images) == ([7], [0])
    assert (len(images), images.skipped, images.classes) == (4, 3, 1)


def test_links_in_circles_are_walked_once_per_class(tmp_path: Path) -> None:
    real = tmp_path / "real"
    save(real / "0" / "x.png", 1)
    for level in range(30):  # two ways from each folder to the next: 2³⁰ in all
        for name in ("left", "right"):
            (real / str(level) / name).parent.mkdir(exist_ok=True)
            (real / str(level) / name).symlink_to(real / str((level + 1) % 30))
    root = tmp_path / "root"
    root.mkdir()
    for name in ("a", "b"):
        (root / name).symlink_to(real / "5")
    assert read_all(open_images(root)) == ([1, 1], [0, 1])


def test_folders_far_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "cat" / "x.png", 3)
    save(tmp_path.joinpath("dog", *["d"] * 400, "x.png"), 4)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 300)  # folders may lie deeper than functions may call each other
    try:
        assert read_all(open_images(tmp_path)) == ([3, 4], [0, 1])
    finally:
        sys.setrecursionlimit(usual)
    monkeypatch.chdir(tmp_path / "dog")
    for _ in range(20):  # deeper than a path may be long
        os.mkdir("e" * 250)
        os.chdir("e" * 250)
    images = open_images(tmp_path)
    assert read_all(images) == ([3, 4], [0, 1])
    assert images.skipped == 1


def test_an_empty_class_folder_keeps_its_place(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    save(tmp_path / "b" / "x.png", 1)
    images = open_images(tmp_path)
    assert read_all(images) == ([1], [1])
    assert images.classes == 2


def test_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    save(tmp_path / "b.png", 2)
    save(tmp_path / "a.png", 1)
    images = open_images(str(tmp_path))
    assert read_all(images) == ([1, 2], [-1, -1])
    assert images.classes is None
    assert not images.labelled


def test_loose_images_make_the_folder_flat(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "in.png", 1)
    save(tmp_path / "out.png", 2)
    assert read_all(open_images(tmp_path)) == ([1, 2], [-1, -1])


def test_linked_folders_are_followed_but_not_round_in_circles(tmp_path: Path) -> None:
    save(tmp_path / "real" / "x.png", 1)
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "real")
    assert read_all(open_images(root)) == ([1], [0])


def test_sample_is_seeded_and_in_order(tmp_path: Path) -> None:
    for level in range(30):
        save(tmp_path / f"{level:02d}.png", level)
    first, again, other = (read_all(open_images(tmp_path, limit=7, seed=s))[0] for s in (3, 3, 4))
    assert first == again == sorted(first)
    assert len(set(first)) == 7
    assert first != other
    assert first != list(range(7))
    every = list(range(30))
    assert read_all(open_images(tmp_path, limit=99))[0] == every == read_all(open_images(tmp_path))[0]


def test_sampling_leaves_the_global_random_numbers_alone(tmp_path: Path) -> None:
    for level in range(4):
        save(tmp_path / f"{level}.png", level)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    read_all(open_images(tmp_path, limit=2))
    assert torch.equal(torch.rand(3), expected)


def test_workers_give_the_same_batches(tmp_path: Path) -> None:
    for level in range(5):
        save(tmp_path / "c" / f"{level}.png", level)
    (tmp_path / "c" / "2.png").write_bytes(b"broken")
    images = open_images(tmp_path, workers=1)
    assert read_all(images) == ([0, 1, 3, 4], [0] * 4)
    assert images.skipped == 1


def test_fingerprint_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "far" / "there"
    for level in range(4):
        save(here / "c" / f"{level}.png", level)
    shutil.copytree(here, there)
    mark = open_images(here).fingerprint
    assert len(mark) == 64
    assert open_images(there).fingerprint == mark
    sampled = open_images(here, limit=2, seed=0).fingerprint
    assert sampled != mark
    assert open_images(there, limit=2, seed=0).fingerprint == sampled

    save(there / "c" / "1.png", 1, side=16)
    assert open_images(there).fingerprint != mark
    save(there / "c" / "1.png", 1)
    assert open_images(there).fingerprint == mark
    (there / "c" / "1.png").rename(there / "c" / "one.png")
    assert open_images(there).fingerprint != mark


def test_fingerprint_follows_the_labels(tmp_path: Path) -> None:
    save(tmp_path / "b" / "x.png")
    mark = open_images(tmp_path).fingerprint
    (tmp_path / "a").mkdir()  # moves b from label 0 to label 1
    assert open_images(tmp_path).fingerprint != mark


def test_sources_that_are_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no image in the folder"):
        open_images(tmp_path)
    with pytest.raises(DataError, match=r"missing.*doesn't exist"):
        open_images(tmp_path / "missing")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"notes\.txt is neither"):
        open_images(tmp_path / "notes.txt")
    with pytest.raises(DataError, match="empty"):
        open_images("")
    with pytest.raises(DataError, match="Hugging Face"):
        open_images("hf:imagenet-1k")


def test_types_that_name_no_images(tmp_path: Path) -> None:
    save(tmp_path / "x.png")
    odd: list[Any] = [None, 5, b"digits", torch.zeros(2, 3, 4, 4), ["a.png"], "a\0b", "x" * 5000]
    for source in odd:
        with pytest.raises(DataError, match=r"names no images|no name of a file|doesn't exist"):
            open_images(source)
    for name, value in {"limit": "5", "seed": -1, "workers": 1.5, "model": "deit", "split": None}.items():
        with pytest.raises(DataError, match=f"The {name} "):
            open_images(tmp_path, **{name: value})  # type: ignore[arg-type]


def test_numbers_out_of_range(tmp_path: Path) -> None:
    save(tmp_path / "x.png")
    for limit in (0, -1):
        with pytest.raises(DataError, match="limit"):
            open_images(tmp_path, limit=limit)
    with pytest.raises(DataError, match="workers"):
        open_images(tmp_path, workers=-1)
    with pytest.raises(DataError, match="batch size"):
        open_images(tmp_path).batches(0)
    with pytest.raises(DataError, match="split"):
        open_images(tmp_path, split="valid")  # type: ignore[arg-type]
