"""WebDataset shards: members, labels, patterns, and archives that are not what they should be."""

import gzip
import io
import os
import pickle
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from patchslim.data import Images, open_images
from patchslim.errors import DataError


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
