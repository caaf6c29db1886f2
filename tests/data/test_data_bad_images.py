"""Images that can't be used are left out and counted; odd ones are converted."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from patchslim.data import open_images
from patchslim.errors import DataError


def noise(side: int = 16) -> Image.Image:
    values = np.random.RandomState(0).randint(0, 256, (side, side, 3))
    return Image.fromarray(values.astype(np.uint8))


def data(image: Image.Image, form: str = "png") -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def fill(folder: Path, count: int) -> None:
    for index in range(count):
        noise().save(folder / f"good-{index:03d}.png")


BAD = {
    "corrupt.jpg": b"\xff\xd8\xff\xe0 this is no jpeg",
    "empty.png": b"",
    "text.gif": b"hello",
    "truncated.jpg": data(noise(64), "jpeg")[:-900],
    "truncated.png": data(noise(64))[:-5000],
    "narrow.png": data(Image.new("RGB", (1, 16))),
    "low.png": data(Image.new("RGB", (16, 1))),
    "script.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\nshowpage\n",
    "unlisted.jpg": data(noise(), "pcx"),  # Pillow knows the format, but we don't let it guess
}


@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_left_out_and_counted(tmp_path: Path, name: str) -> None:
    fill(tmp_path, 3)
    (tmp_path / name).write_bytes(BAD[name])
    images = open_images(tmp_path)
    assert len(images) == 4
    for _ in range(2):
        assert sum(len(labels) for _, labels in images.batches(2)) == 3
        assert images.skipped == 1


def test_links_to_nowhere_count_as_bad(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing")
    images = open_images(tmp_path)
    assert [len(labels) for _, labels in images.batches(4)] == [1]
    assert images.skipped == 1


def test_empty_batches_are_not_yielded(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    for index in range(4):
        (tmp_path / f"a-{index}.png").write_bytes(b"bad")
    assert [len(labels) for _, labels in open_images(tmp_path).batches(2)] == [2]


def png_header(width: int, height: int) -> bytes:
    """A picture of 16-bit greys of which nothing follows."""
    about = struct.pack(">4sIIBBBBB", b"IHDR", width, height, 16, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + about + struct.pack(">II4s", zlib.crc32(about), 99, b"IDAT")


def exactly(values: list[list[int]], kind: type) -> bytes:
    return data(Image.fromarray(np.array(values, dtype=kind)), "tiff")


TOO_MUCH = {
    "large.png": (png_header(13_000, 13_000), "13000x13000 pixels, more than the 128 million"),
    "long.png": (data(Image.new("1", (60_000, 2))), "one side is more than 100 times the other"),
    "wide.tif": (exactly([[0, 9]] * 2, np.int32), "32-bit or signed whole numbers, which have no agreed range"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_would_take_too_much_or_come_out_black_is_bad_undecoded(tmp_path: Path, name: str) -> None:
    content, reason = TOO_MUCH[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=reason):
        open_images(tmp_path)
    fill(tmp_path, 1)
    assert sum(len(labels) for _, labels in open_images(tmp_path).batches(2)) == 1


def test_files_beyond_the_bound_are_not_read(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with open(tmp_path / "sparse.webp", "wb") as file:
        file.write(b"RIFF\x00\x00\x00\x00WEBPVP8 ")
        file.truncate(2**31)
    images = open_images(tmp_path)
    assert sum(len(labels) for _, labels in images.batches(2)) == 1
    with pytest.raises(DataError, match=r"sparse\.webp, is bad \(it has 2\.0 GiB, more than the 1 that are read"):
        images.picture(1)


def test_a_decompression_bomb_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 2)
    noise(64).save(tmp_path / "huge.png")
    images = open_images(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)  # an error above 600: 64x64 has 4096, 16x16 has 256
    assert sum(len(labels) for _, labels in images.batches(8)) == 2
    assert images.skipped == 1


def test_five_bad_ones_are_borne_and_six_are_not(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    for index in range(5):
        (tmp_path / f"late-{index}.png").write_bytes(b"bad")
    images = open_images(tmp_path)
    assert sum(len(labels) for _, labels in images.batches(4)) == 10
    assert images.skipped == 5
    (tmp_path / "late-5.png").write_bytes(b"bad")
    images = open_images(tmp_path)
    with pytest.raises(DataError, match=r"6 of the first 16 images \(of 16\).*late-0\.png \(it is no image\)"):
        list(images.batches(4))
    assert images.skipped == 6


def test_a_tenth_of_many_is_borne(tmp_path: Path) -> None:
    fill(tmp_path, 63)
    for index in range(7):
        (tmp_path / f"bad-{index}.png").write_bytes(b"bad")
    assert sum(len(labels) for _, labels in open_images(tmp_path).batches(32)) == 63
    (tmp_path / "bad-7.png").write_bytes(b"bad")
    with pytest.raises(DataError, match="8 of the first"):
        list(open_images(tmp_path).batches(32))


def test_nothing_readable(tmp_path: Path) -> None:
    from timm.models import VisionTransformer

    model = VisionTransformer(img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=2)
    for index in range(3):
        (tmp_path / f"{index}.png").write_bytes(b"bad")
    with pytest.raises(DataError, match=r"None of the 3 .*0\.png"):
        open_images(tmp_path)
    with pytest.raises(DataError, match=r"None of the 3 .*0\.png"):
        list(open_images(tmp_path, model=model).batches(2))


def read_one(path: Path) -> torch.Tensor:
    """The one image as (3, H, W) values from 0 to 255; any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = open_images(path.parent)
        ((pixels, _),) = images.batches(1)
    assert images.skipped == 0
    assert pixels.dtype == torch.float32
    assert pixels.shape[:2] == (1, 3)
    return pixels[0] * 255


@pytest.mark.parametrize("form", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(10))
def test_pictures_are_turned_as_they_are_looked_at(tmp_path: Path, form: str, orientation: int) -> None:
    large = np.zeros((32, 48, 3), np.uint8)
    large[:16, :16, 0] = large[:16, 32:, 1] = large[16:, :16, 2] = 255
    picture = Image.fromarray(large)
    exif = picture.getexif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "x.png", form, exif=exif)
    with Image.open(tmp_path / "x.png") as image:
        wanted = torch.from_numpy(np.array(ImageOps.exif_transpose(image).convert("RGB"))).permute(2, 0, 1)
    found = read_one(tmp_path / "x.png")
    assert torch.equal(found.round().byte(), wanted)
    assert tuple(found.shape[1:]) == ((48, 32) if 5 <= orientation <= 8 else (32, 48))


def test_damaged_exif_data_is_passed_over(tmp_path: Path) -> None:
    noise().save(tmp_path / "x.jpg", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f")
    assert read_one(tmp_path / "x.jpg").shape == (3, 16, 16)


def test_grey_is_repeated(tmp_path: Path) -> None:
    Image.new("L", (4, 4), 77).save(tmp_path / "x.png")
    assert torch.allclose(read_one(tmp_path / "x.png"), torch.full((3, 4, 4), 77.0))


def test_black_and_white(tmp_path: Path) -> None:
    Image.new("1", (4, 4), 1).save(tmp_path / "x.png")
    assert torch.allclose(read_one(tmp_path / "x.png"), torch.full((3, 4, 4), 255.0))


def test_cmyk_is_converted(tmp_path: Path) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "x.jpg", quality=100)  # pure red
    assert read_one(tmp_path / "x.jpg").mean((1, 2)).tolist() == pytest.approx([255, 0, 0], abs=6)


def test_rgba_loses_its_alpha(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (10, 20, 30, 128)).save(tmp_path / "x.png")
    assert read_one(tmp_path / "x.png").mean((1, 2)).tolist() == pytest.approx([10, 20, 30])


def test_palette_with_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(tmp_path / "x.png", transparency=b"\x00\x80")
    assert read_one(tmp_path / "x.png").mean((1, 2)).tolist() == pytest.approx([200, 100, 50])


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_sixteen_bits_keep_their_brightness(tmp_path: Path, ending: str) -> None:
    Image.fromarray(np.full((4, 4), 0x4000, dtype=np.uint16)).save(tmp_path / f"x.{ending}")
    assert read_one(tmp_path / f"x.{ending}").mean().item() == pytest.approx(255 / 4, abs=1)


def test_of_an_animation_the_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert read_one(tmp_path / "x.gif").mean((1, 2)).tolist() == pytest.approx([255, 0, 0])


def test_a_jpeg_called_png_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(data(Image.new("RGB", (16, 16), (50, 50, 50)), "jpeg"))
    assert read_one(tmp_path / "x.png").mean().item() == pytest.approx(50, abs=2)
