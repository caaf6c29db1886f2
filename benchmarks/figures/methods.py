"""The README's pictures, of what `merge` and `drop` do to digits: those that the demo draws."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from patchslim.cli.opening import open_model
from patchslim.cli.showcase import KEPT_PICTURE, MERGED_PICTURE, draw, slim_digits
from patchslim.methods import DEFAULT, PLAINEST

DOCS = Path(__file__).parents[2] / "docs"


def methods(out: Annotated[Path, typer.Option("--out", help="Folder of the pictures.")] = DOCS) -> None:
    """Slim the bundled digits model as the demo does, and draw its merged and its kept patches."""
    host = open_model("digits_vit", pretrained=True)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        merged = slim_digits(host, DEFAULT, runs / DEFAULT, runs / MERGED_PICTURE)
        plain = slim_digits(host, PLAINEST, runs / PLAINEST, runs / KEPT_PICTURE)
        draw(host, merged, plain)
        for name in (MERGED_PICTURE, KEPT_PICTURE):
            shutil.copyfile(runs / name, out / name)
            print(out / name)
