"""`patchslim view`: what a run's blocks compute of some images, as a picture."""

from pathlib import Path
from typing import Annotated

from typer import Option

from patchslim.cli import options
from patchslim.cli.terminal import report
from patchslim.errors import PatchslimError

MOST = 16  # images in a picture


def view(
    run: options.RunFolder,
    image: Annotated[list[str], Option(metavar="FILE", help="An image, or a source; repeat it.")],
    out: Annotated[Path | None, Option(metavar="PNG", help="The picture [RUN/view.png].")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Draw the tokens that each block computes over some images, each in the mean colour of its patches."""
    import torch

    from patchslim.data import open_images
    from patchslim.hosts import inspect
    from patchslim.report.pictures import draw_sources, mean_tokens
    from patchslim.runs.manifest import add_made
    from patchslim.runs.store import PLAN, load
    from patchslim.slimmed import plan_of, sources

    if out is not None:
        options.check_ending(out, ".png", "A picture")
        if out.exists() and any(Path(name).resolve() in (out.resolve(), *out.resolve().parents) for name in image):
            raise PatchslimError(f"{out} is one of the images; give another name with --out.")
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
    add_made(run, [path], PLAN, of_weights=False)
    counts = list(map(mean_tokens, tokens))
    result = {"run": str(run), "images": len(pictures), "picture": str(path), "patches_per_block": counts}
    report(result, as_json, f"{path}: {len(pictures)} images; patches per block {', '.join(map(str, counts))}")
