"""Pictures show kept patches as they are, paint tokens over the patches they stand for, and fade all others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import patchslim as ps
from patchslim.report import draw_kept, draw_sources, pictures
from patchslim.report.pictures import Panel, borders, owners, paint, shade_removed
from patchslim.slimmed import plan_of
from small import make_host, make_images, merging, slim_of

GRID = (2, 3)


def tokens(*groups: list[int], patches: int = 6) -> Tensor:
    """A row per group of patches: (n, N) boolean."""
    rows = torch.zeros(len(groups), patches, dtype=torch.bool)
    for row, group in zip(rows, groups, strict=True):
        row[group] = True
    return rows


def random_picture(height: int = 8, width: int = 12) -> Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))


def test_kept_patches_stay_and_others_fade() -> None:
    picture = torch.randint(0, 256, (3, 8, 12), dtype=torch.uint8)
    shaded = shade_removed(picture, [0, 5], (2, 3))
    plain = picture.permute(1, 2, 0) / 255
    same = torch.isclose(shaded, plain).all(-1)
    expected = torch.zeros(8, 12, dtype=torch.bool)
    expected[:4, :4] = expected[4:, 8:] = True
    assert bool(same[expected].all())
    assert float((~same[~expected]).float().mean()) > 0.9


def test_every_patch_has_its_token() -> None:
    assert owners(tokens([0, 4], [], [1], [5, 2])).tolist() == [0, 2, 3, -1, 0, 3]
    assert owners(torch.zeros(0, 6, dtype=torch.bool)).tolist() == [-1] * 6


def test_tokens_have_the_mean_colour_of_their_pixels() -> None:
    picture = random_picture()
    groups = [[0, 4], [1], [5, 2]]
    painted = paint(picture, owners(tokens(*groups)), GRID).numpy()
    pixels = picture.numpy()
    for group in groups:
        places = [(y, x) for y in range(8) for x in range(12) if y // 4 * 3 + x // 4 in group]
        for channel in range(3):
            mean = sum(int(pixels[channel, y, x]) for y, x in places) / len(places) / 255
            np.testing.assert_allclose([painted[y, x, channel] for y, x in places], mean, atol=1e-6)


def test_patches_without_a_token_fade() -> None:
    picture = random_picture()
    painted = paint(picture, owners(tokens([0, 4], [1], [5, 2])), GRID)
    faded = shade_removed(picture, [0, 1, 2, 4, 5], GRID)
    torch.testing.assert_close(painted[4:, :4], faded[4:, :4], rtol=0, atol=0)
    assert not torch.allclose(painted[:4, :4], faded[:4, :4])


def test_a_token_of_one_plain_patch_stays_as_it_is() -> None:
    picture = torch.full((3, 8, 12), 51, dtype=torch.uint8)
    alone = tokens(*([patch] for patch in range(6)))
    torch.testing.assert_close(paint(picture, owners(alone), GRID), torch.full((8, 12, 3), 0.2))


def test_pixels_beyond_the_last_patch_are_left_out() -> None:
    assert paint(random_picture(9, 14), owners(tokens([0, 1])), GRID).shape == (8, 12, 3)


def test_lines_run_between_different_tokens_only() -> None:
    # 0 0 1
    # . 2 1   with patches of 4 × 5 pixels
    owner = torch.tensor([[0, 0, 1], [-1, 2, 1]])
    lines = borders(owner, (4, 5))
    assert sorted(lines) == [
        ((4.5, 3.5), (9.5, 3.5)),  # 0 over 2
        ((9.5, -0.5), (9.5, 3.5)),  # 0 beside 1
        ((9.5, 3.5), (9.5, 7.5)),  # 2 beside 1
    ]


def drawn(monkeypatch: pytest.MonkeyPatch, *args: Any) -> tuple[list[list[Panel]], list[str]]:
    """The panels and the names of the columns that a picture is made of."""
    found: list[Any] = []
    monkeypatch.setattr(pictures, "draw_panels", lambda rows, names, path, title: found.extend((rows, names)))
    draw_sources(*args)
    rows, names = found
    return rows, names


def test_columns_count_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [random_picture(), random_picture()]
    full = tokens(*([patch] for patch in range(6)))
    uneven = torch.stack([tokens([0, 1], [2], []), tokens([3], [], [])])
    nothing = torch.zeros(2, 1, 6, dtype=torch.bool)
    blocks = [full.expand(2, -1, -1), uneven, nothing]
    rows, names = drawn(monkeypatch, images, blocks, GRID, Path())
    assert names == ["input", "block 1\n6 tokens", "block 2\n1.5 tokens"]
    assert [len(row) for row in rows] == [3, 3]
    for picture, row, block in zip(images, rows, uneven, strict=True):
        torch.testing.assert_close(row[0].image, picture.permute(1, 2, 0) / 255)
        assert row[0].lines == []
        torch.testing.assert_close(row[2].image, paint(picture, owners(block), GRID))
    assert [len(row[1].lines) for row in rows] == [7, 7]  # every edge inside a grid of 2 × 3
    assert [len(row[2].lines) for row in rows] == [1, 0]


def test_only_a_last_block_without_tokens_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tokens([0, 1, 2, 3, 4, 5])[None]
    for blocks, columns in (([one, one], 3), ([one, torch.zeros(1, 0, 6, dtype=torch.bool)], 2)):
        assert len(drawn(monkeypatch, [random_picture()], blocks, GRID, Path())[1]) == columns


def test_draws_a_png_of_a_model(tmp_path: Path) -> None:
    model = make_host()
    slim = ps.apply(model, *merging(model, drops=(2,)))
    images = [random_picture(32, 32) for _ in range(2)]
    draw_sources(images, ps.sources(slim, make_images(2)), ps.inspect(slim).grid, tmp_path / "merged.png", "title")
    with Image.open(tmp_path / "merged.png") as image:
        assert image.format == "PNG"
        assert image.width > 1.3 * image.height
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    line = np.array([int(pictures.LINE_COLOUR[begin : begin + 2], 16) for begin in (1, 3, 5)])
    assert (np.abs(colours - line).max(axis=1) < 8).any()


def test_draws_a_png_of_a_plan(tmp_path: Path) -> None:
    _, slim = slim_of()
    plan = plan_of(slim)
    assert plan is not None
    images = [torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8) for _ in range(2)]
    draw_kept(plan, images, tmp_path / "kept.png", "title")
    with Image.open(tmp_path / "kept.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > picture.height
