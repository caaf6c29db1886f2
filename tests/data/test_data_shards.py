"""WebDataset shards: members, labels, patterns, and archives that are not what they should be."""

import gzip
import io
import os
import pickle
import tarfile
import warnings
from pathlib import Path

import pytest
from PIL import Image

from patchslim.data import Images, open_images
from patchslim.errors import DataError, PatchslimWarning


def png(level: int, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (level, level, level)).save(file, "png")
    return file.getvalue()


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def read_all(images: Images) -> list[tuple[int, int]]:
    """(grey level, label) of each image, in order."""
    pairs: list[tuple[int, int]] = []
    for pixels, labels in images.batches(3):
        levels = (pixels[:, 0, 0, 0] * 255).round().int().tolist()
        pairs += zip(levels, labels.tolist(), strict=True)
    return pairs


def test_members_are_grouped_by_key(tmp_path: Path) -> None:
    shard = write_tar(
        tmp_path / "s.tar",
        [
            ("dir.v1/b.cls", b"7\n"),
            ("dir.v1/b.png", png(20)),
            ("dir.v1/b.txt", b"caption"),
            ("a.png", png(10)),
            ("a.seg.png", png(99)),
            ("a.cls", b" 3 "),
            ("e.cls", b"5"),
            ("z.json", b"{}"),
            ("z.png", png(30)),
            ("._a.png", b"resource fork"),
        ],
    )
    with pytest.warns(PatchslimWarning, match="has 1 labels without an image and 1 images without a label"):
        images = open_images(shard)
    assert read_all(images) == [(10, 3), (20, 7), (30, -1)]
    assert images.labelled
    assert images.classes is None
    assert len(images) == 3


def test_a_shard_without_labels(tmp_path: Path) -> None:
    images = open_images(write_tar(tmp_path / "s.tar", [("a.png", png(1))]))
    assert read_all(images) == [(1, -1)]
    assert not images.labelled


def test_patterns_name_the_same_shards(tmp_path: Path) -> None:
    for number in range(12):
        name = tmp_path / f"s-{number:04d}.tar"
        write_tar(name, [("a.png", png(2 * number)), ("b.png", png(2 * number + 1))])
    everything = [(level, -1) for level in range(24)]
    braces = open_images(f"{tmp_path}/s-{{0000..0011}}.tar")
    stars = open_images(tmp_path / "s-*.tar")
    assert read_all(braces) == everything == read_all(stars)
    assert braces.fingerprint == stars.fingerprint
    assert read_all(open_images(f"{tmp_path}/s-00{{03,01}}.tar")) == [(2, -1), (3, -1), (6, -1), (7, -1)]
    sample = read_all(open_images(tmp_path / "s-*.tar", limit=5, seed=1))
    assert len(sample) == 5
    assert set(sample) < set(everything)
    assert sample == read_all(open_images(tmp_path / "s-*.tar", limit=5, seed=1))


def test_fingerprint_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    members = [("a.png", png(1)), ("a.cls", b"1")]
    marks = [
        open_images(write_tar(tmp_path / folder / "s.tar", content)).fingerprint
        for folder, content in [
            ("one", members),
            ("two/deep", members),
            ("three", [members[0], ("a.cls", b"2")]),
            ("four", [("a.png", png(1, side=16)), members[1]]),
        ]
    ]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 3


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    bomb = pickle.dumps(Bomb(trace))
    pickle.loads(bomb)
    assert trace.exists(), "the bomb works"
    trace.rmdir()
    endings = ["pyd", "pkl", "pickle", "pth", "npy", "cls.pyd"]
    members = [(f"a.{ending}", bomb) for ending in endings]
    shard = write_tar(tmp_path / "s.tar", [*members, ("a.png", png(1)), ("b.png", bomb)])
    images = open_images(shard)
    assert read_all(images) == [(1, -1)]
    assert images.skipped == 1
    assert not trace.exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_are_not_followed(tmp_path: Path, kind: bytes) -> None:
    outside = tmp_path / "secret.png"
    outside.write_bytes(png(9))
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("link.png")
        info.type, info.linkname = kind, str(outside)
        tar.addfile(info)
    with pytest.raises(DataError, match="no image in the shard"):
        open_images(path)


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    for content in (b"", b"hello", bytes(range(256)) * 8, gzip.compress(b"x" * 2000)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"s\.tar can't be read as an uncompressed tar"):
            open_images(path)


def test_a_truncated_archive_at_any_length(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "s.tar", [("a.png", png(1)), ("b.png", png(2))]).read_bytes()
    # header and data of each image take two blocks of 512 bytes: the end mark begins at 2048
    for length in [*range(1, 2048, 97), 512, 1024, 1536, 2048]:
        cut = tmp_path / "cut.tar"
        cut.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut\.tar can't be read"):
            open_images(cut)
    cut.write_bytes(whole[:3072])
    assert len(open_images(cut)) == 2


def test_a_damaged_header_in_the_middle(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.png", png(1)), ("b.png", png(2))])
    data = bytearray(path.read_bytes())
    data[1024 + 148 : 1024 + 156] = b"garbage!"
    path.write_bytes(data)
    with pytest.raises(DataError, match="end mark"):
        open_images(path)


EIGHT = [(f"{i}.{ending}", png(i) if ending == "png" else b"%d" % i) for i in range(8) for ending in ("png", "cls")]


@pytest.mark.parametrize("zeroed", [1, 2, 3, 4])  # blocks; a member has two, its header and its data
@pytest.mark.parametrize("first", [0, 2, 3, 14, 28, 29])
def test_a_hole_never_ends_an_archive_in_silence(tmp_path: Path, first: int, zeroed: int) -> None:
    path = write_tar(tmp_path / "s.tar", [*EIGHT, ("9.cls", b"9"), ("9.png", png(9) + bytes(range(256)) * 80)])
    whole, data = read_all(open_images(path)), bytearray(path.read_bytes())
    data[512 * first : 512 * (first + zeroed)] = bytes(512 * zeroed)
    path.write_bytes(data)
    try:
        with warnings.catch_warnings(record=True) as told:
            images = open_images(path)
        found = read_all(images)
    except DataError:
        return
    lost = len(whole) - len(found) - images.skipped
    assert [row for row in found if row not in whole] == [] or told
    assert lost == 0 or told


def test_what_lies_behind_the_end_is_told(tmp_path: Path) -> None:
    one, two = (write_tar(tmp_path / f"{i}.tar", [(f"{i}.png", png(i))]).read_bytes() for i in range(2))
    both = tmp_path / "both.tar"
    both.write_bytes(one + two)
    with pytest.raises(DataError, match=r"goes on after its end mark at byte 1024.*several archives put together"):
        open_images(both)
    both.write_bytes(one + bytes(20_000))  # what a system leaves of a file whose end was never written
    with pytest.warns(PatchslimWarning, match="bytes of zeros where members may have been"):
        open_images(both)


def test_brackets_in_a_folder_are_part_of_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "[2024] set {a}*?"
    for number in range(2):
        write_tar(folder / f"s-{number}.tar", [("a.png", png(number))])
    assert read_all(open_images(folder / "s-1.tar")) == [(1, -1)]
    plain = folder.rename(tmp_path / "[2024] set {a}?")
    escaped = str(plain).replace("{", "\\{").replace("}", "\\}")
    for pattern in (f"{escaped}/s-*.tar", f"{escaped}/s-{{0..1}}.tar"):
        assert read_all(open_images(pattern)) == [(0, -1), (1, -1)]
    assert read_all(open_images(plain.rename(tmp_path / "[ab]c") / "s-*.tar")) == [(0, -1), (1, -1)]


def test_classes_may_be_words(tmp_path: Path) -> None:
    shard = write_tar(
        tmp_path / "s.tar", [("a.png", png(1)), ("a.cls", b"tabby cat\n"), ("b.png", png(2)), ("b.cls", b"10")]
    )
    assert read_all(open_images(shard, classes=["dog", "10", "tabby cat"])) == [(1, 2), (2, 1)]
    with pytest.raises(DataError, match="'tabby cat' of the images is none of the 2 classes"):
        open_images(shard, classes="dog,10")
    with pytest.raises(DataError, match=r"a\.cls .* is no class number.*or say with --classes"):
        open_images(shard)


def test_missing_shards_and_bad_patterns(tmp_path: Path) -> None:
    write_tar(tmp_path / "s-0.tar", [("a.png", png(1))])
    with pytest.raises(DataError, match=r"s-1\.tar doesn't exist"):
        open_images(f"{tmp_path}/s-{{0..3}}.tar")
    with pytest.raises(DataError, match="longer than"):
        open_images(f"{tmp_path}/s-{{0..999999999}}.tar")
    with pytest.raises(DataError, match=r"gone\.tar doesn't exist"):
        open_images(tmp_path / "gone.tar")
    with pytest.raises(DataError, match="No shard matches"):
        open_images(tmp_path / "t-*.tar")
    with pytest.raises(DataError, match=r"doesn't end in \.tar"):
        open_images(tmp_path / "*.png")
    with pytest.raises(DataError, match="braces"):
        open_images(f"{tmp_path}/s-{{0.tar")


def test_members_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.cls .* no class number"):
        open_images(write_tar(tmp_path / "s.tar", [("a.png", png(1)), ("a.cls", b"cat")]))
    with pytest.raises(DataError, match=r"a\.png twice"):
        open_images(write_tar(tmp_path / "s.tar", [("a.png", png(1)), ("a.png", png(2))]))
    with pytest.raises(DataError, match="no image in the shard"):
        open_images(write_tar(tmp_path / "s.tar", [("a.txt", b"x"), ("a.cls", b"1")]))


def test_zeros_without_end_are_not_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "hole.tar", [("a.png", png(1))])
    os.truncate(path, 2**37)
    with pytest.raises(DataError, match="goes on for more than 64 MiB after its end mark"):
        open_images(str(path))
