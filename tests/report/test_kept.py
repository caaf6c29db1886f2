"""The picture shows kept patches as they are and fades the others."""

from pathlib import Path

import torch
from PIL import Image

from patchslim.report import draw_kept
from patchslim.report.kept import shade_removed
from patchslim.slim import plan_of
from small import slim_of


def test_kept_patches_stay_and_others_fade() -> None:
    picture = torch.randint(0, 256, (3, 8, 12), dtype=torch.uint8)
    shaded = shade_removed(picture, [0, 5], (2, 3))
    plain = picture.permute(1, 2, 0) / 255
    same = torch.isclose(shaded, plain).all(-1)
    expected = torch.zeros(8, 12, dtype=torch.bool)
    expected[:4, :4] = expected[4:, 8:] = True
    assert bool(same[expected].all())
    assert float((~same[~expected]).float().mean()) > 0.9


def test_draws_a_png(tmp_path: Path) -> None:
    _, slim = slim_of()
    plan = plan_of(slim)
    assert plan is not None
    pictures = [torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8) for _ in range(2)]
    draw_kept(plan, pictures, tmp_path / "kept.png", "title")
    with Image.open(tmp_path / "kept.png") as image:
        assert image.format == "PNG"
        assert image.width > image.height
