"""What tests of the benchmarks share: the runner in an empty folder, the smallest models, a few pictures."""

import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.rows import Row, read_rows

Run = Callable[..., tuple[list[Row], str]]  # words → the rows it wrote, what it printed


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call the runner in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[list[Row], str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return list(read_rows(tmp_path / "rows")), done.stdout

    return call


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """timm's smallest ViT with 16 patches and random weights for ten classes."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_file(timm.create_model("test_vit", img_size=64, num_classes=10).state_dict(), path)
    return ("--model", "test_vit", "--img-size", "64", "--checkpoint", str(path), "--device", "cpu")


@pytest.fixture(scope="session")
def shard(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shard of 24 pictures of 32 pixels in four classes."""
    folder = tmp_path_factory.mktemp("shard")
    generator = torch.Generator().manual_seed(0)
    with tarfile.open(folder / "s.tar", "w") as file:
        for number in range(24):
            pixels = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8, generator=generator)
            Image.fromarray(pixels.numpy()).save(folder / "x.png")
            (folder / "x.cls").write_text(str(number % 4))
            for end in ("png", "cls"):
                file.add(folder / f"x.{end}", f"{number:06d}.{end}")
    return str(folder / "s.tar")
