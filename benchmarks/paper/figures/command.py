"""`python -m benchmarks paper figures`: the paper's five figures on any model and images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.inputs import MODEL, ModelName, Out, Weights, Where, in_memory, say
from benchmarks.paper.figures.blocks import READINGS, SCORES, Cut, measure_blocks
from benchmarks.paper.figures.draw import FIGURES, draw
from benchmarks.paper.figures.searches import measure_eps, measure_even
from benchmarks.paper.figures.similarity import measure_sim
from benchmarks.paper.figures.work import Work
from benchmarks.paper.text import pages
from benchmarks.rows import RESULTS, Row, read_rows
from patchslim.cli.opening import open_device, open_model
from patchslim.cli.options import Pretrained
from patchslim.errors import PatchslimError
from patchslim.hosts.hf_open import is_hf_name

RATES = tuple(tenth / 10 for tenth in range(1, 10))
PAPER_LAYERS, PAPER_DEPTH = (3, 7, 11), 12


def figures(
    model: ModelName = MODEL,
    checkpoint: Weights = None,
    pretrained: Pretrained = False,
    data: Annotated[str | None, typer.Option("--data", help="Images to choose patches by, without labels.")] = None,
    val: Annotated[str | None, typer.Option("--val", help="Labelled images to measure with.")] = None,
    only: Annotated[str, typer.Option("--figures", metavar="A,B,…")] = ",".join(FIGURES),
    images: Annotated[int, typer.Option("--images", help="How many of --data.")] = 256,
    limit: Annotated[int | None, typer.Option("--limit", help="How many of --val [all].")] = None,
    tolerances: Annotated[str, typer.Option("--tolerances", metavar="E,…", help="eps [the method's usual ones].")] = "",
    ratio: Annotated[float, typer.Option("--ratio", help="even: MACs kept.")] = 0.55,
    rates: Annotated[str, typer.Option("--rates", metavar="R,…", help="layers, acc: shares of patches that go.")] = "",
    score: Annotated[str, typer.Option("--score", help="layers: what patches go by.")] = "impact",
    scores: Annotated[
        str, typer.Option("--scores", metavar="A,B,…", help="acc.")
    ] = "impact,taylor,attention,random,radial",
    random_seeds: Annotated[str, typer.Option("--random-seeds", metavar="S,…", help="acc: draws.")] = "0,1,2",
    blocks: Annotated[str, typer.Option("--blocks", metavar="L,…", help="acc [3,7,11, or as deep in others].")] = "",
    removed: Annotated[str, typer.Option("--removed", metavar="A,B", help="How one block is pruned.")] = ",".join(
        READINGS
    ),
    batch_size: Annotated[int, typer.Option("--batch-size", help="Of measuring.")] = 250,
    seed: int = 0,
    device: Where = None,
    resume: Annotated[bool, typer.Option("--resume", help="Leave alone what is there.")] = False,
    redraw: Annotated[bool, typer.Option("--draw", help="Only draw rows that are there.")] = False,
    out: Out = RESULTS,
) -> None:
    """Measure and draw sim, eps, even, layers and acc; without weights or images, what can be measured."""
    names = checked("figure", only, FIGURES)
    ways = checked("way to prune a block", removed, READINGS)
    some = checked("score", scores, SCORES)
    checked("score", score, SCORES)
    shares = numbers(rates)
    if not all(0 < rate < 1 for rate in shares):
        raise PatchslimError("A pruning rate lies between 0 and 1; --rates has others.")
    if not redraw:
        work = open_work(model, checkpoint, pretrained, data, val, images, limit, batch_size, seed, device)
        work.out, work.resume = out, resume
        depth = work.host.info.depth
        at = [int(block) for block in numbers(blocks)]
        at = at or sorted(
            {block if depth >= PAPER_DEPTH else max(1, block * depth // PAPER_DEPTH) for block in PAPER_LAYERS}
        )
        if not all(1 <= block <= depth for block in at):
            raise PatchslimError(f"{model} has blocks 1 to {depth}; --blocks names others.")
        lone = [Cut(score, seed, way, rate) for way, rate in product(ways, shares or RATES[::2])]
        named = [(name, own) for name in some for own in (numbers(random_seeds) if name == "random" else [seed])]
        many = [Cut(name, int(own), way, rate) for (name, own), way, rate in product(named, ways, shares or RATES)]
        measurers: dict[str, Callable[[], None]] = {
            "sim": lambda: measure_sim(work),
            "eps": lambda: measure_eps(work, numbers(tolerances)),
            "even": lambda: measure_even(work, ratio),
            "layers": lambda: measure_blocks(work, "layers", range(1, depth + 1), lone),
            "acc": lambda: measure_blocks(work, "acc", at, many),
        }
        for name in names:
            measurers[name]()
    for name in names:
        show(name, model, out)


def show(figure: str, model: str, out: Path) -> None:
    """A figure's table and, where matplotlib is, its picture; by device, as models on others are other rows."""
    rows = [row for row in read_rows(out) if (row.question, row.model) == (f"figure-{figure}", model)]
    for place, device in enumerate(dict.fromkeys(row.device for row in rows)):
        own: list[Row] = [row for row in rows if row.device == device]
        print(pages(f"figure-{figure}", own))
        path = out / "pictures" / f"figure_{figure}_{model.replace('/', '_')}{f'_{place}' if place else ''}.png"
        if find_spec("matplotlib") is not None:
            draw(figure, own, path)
            print(path)


def checked(what: str, words: str, known: Iterable[str]) -> list[str]:
    """Words with commas between, all of them known."""
    found = [word.strip() for word in words.split(",")]
    strange = [word for word in found if word not in set(known)]
    if strange:
        raise PatchslimError(f"There is no {what} {strange[0]!r}; choose from {', '.join(known)}.")
    return found


def numbers(words: str) -> list[float]:
    """Numbers with commas between."""
    try:
        return [float(word) for word in words.split(",") if word.strip()]
    except ValueError:
        raise PatchslimError(f"{words!r} is not a number, nor several with commas between.") from None


def open_work(
    name: str,
    checkpoint: Path | None,
    pretrained: bool,
    data: str | None,
    val: str | None,
    images: int,
    limit: int | None,
    batch_size: int,
    seed: int,
    device: str | None,
) -> Work:
    """The model and, where its weights are not random, the images."""
    place = open_device(device)
    model = open_model(name, checkpoint, pretrained).to(place).requires_grad_(False)
    trained = checkpoint is not None or pretrained or is_hf_name(name)
    lacks = {"weights (--checkpoint or --pretrained)": not trained}
    lacks |= {"images to choose by (--data)": data is None, "labelled images (--val)": val is None}
    work = Work(name, model, batch_size=batch_size, seed=seed, missing=[what for what in lacks if lacks[what]])
    if work.missing:
        say(f"Missing: {', '.join(work.missing)}. Measured is what can be without.")
    if trained and data is not None:
        work.images = in_memory(data, model, images, seed)
    if trained and val is not None:
        work.val = in_memory(val, model, limit, seed, split="test")
    return work
