"""`patchslim view`: what a run's blocks compute of some images, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from patchslim.cli.common import AsJson, RunFolder, report
from patchslim.data import open_images
from patchslim.errors import PatchslimError
from patchslim.hosts import inspect
from patchslim.report import draw_sources
from patchslim.runs.store import load
from patchslim.slim import plan_of, sources

MOST = 16  # images in a picture


def view(
    run: RunFolder,
    image: Annotated[list[str], typer.Option("--image", metavar="FILE", help="An image, or a source; repeat it.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="PNG", help="The picture [RUN/view.png].")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the tokens that each block computes over some images, each in the mean colour of its patches."""
    slim = load(run)
    plan, path = plan_of(slim), out or run / "view.png"
    assert plan is not None
    if not plan.exact:
        raise PatchslimError(f"The tokens of {plan.method} stand for no patches of their own, so there is no picture.")
    found = [open_images(name, model=slim, limit=MOST) for name in image]
    pictures = [own.picture(number) for own in found for number in range(len(own))][:MOST]
    batch = torch.cat([pixels for own in found for pixels, _ in own.batches(MOST)])[:MOST]
    tokens = sources(slim, batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_sources(pictures, tokens, inspect(slim).grid, path, f"{plan.host.name}, {plan.method}")
    counts = [round(float(block.any(dim=2).sum(dim=1).double().mean()), 1) for block in tokens]
    result = {"run": str(run), "images": len(pictures), "picture": str(path), "patches_per_block": counts}
    report(result, as_json, f"{path}: {len(pictures)} images; patches per block {', '.join(map(str, counts))}")
