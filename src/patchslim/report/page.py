"""A page of HTML about some runs: what each is, what it was measured to be, and its pictures. One file, no scripts."""

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
    most = max(1, *(count for run in runs for count in run["patches_per_block"]))
    write_text(path, room.get_template("report.html").render(runs=runs, most=most))


def pictures_in(folder: Path) -> list[str]:
    """Pictures that lie in a run's folder, as addresses that need no file."""
    found = [path.read_bytes() for path in sorted(folder.glob("*.png"))[:PICTURES]]
    return ["data:image/png;base64," + base64.b64encode(png).decode("ascii") for png in found]
