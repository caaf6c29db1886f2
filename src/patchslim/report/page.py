"""A page of HTML about some runs: what each is, what it was measured to be, and its pictures. One file, no scripts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from patchslim.files import write_text

PICTURES = 4  # of a run, at most


def write_page(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the page; `runs` say of each what the template shows."""
    room = Environment(loader=PackageLoader("patchslim", "assets"), autoescape=True, undefined=StrictUndefined)
    write_text(path, room.get_template("report.html").render(runs=runs, most=max(map(_most, runs))))


def inline(picture: Path) -> str:
    """A PNG as an address that needs no file."""
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode("ascii")


def pictures_in(folder: Path) -> list[str]:
    """Pictures that lie in a run's folder."""
    return [inline(path) for path in sorted(folder.glob("*.png"))[:PICTURES]]


def _most(run: Mapping[str, Any]) -> int:
    counts: Sequence[int] = run["patches_per_block"]
    return max(1, *counts)
