"""The five figures of the paper, measured on any model and images: docs/paper.md says what each shows.

    python benchmarks/paper_figures.py --figures sim eps even layers acc --model deit_tiny_patch16_224 \
        --checkpoint deit_tiny_patch16_224.safetensors --data imagenet-train-1k-0000.tar \
        --val imagenet-val-dev-0000.tar --out results

Each figure is a raw file, `figure_NAME_MODEL.json`, written row by row; `--resume` goes on with what is missing. Where
matplotlib is installed a picture lies beside it; `--draw FILE …` draws raw files later, and `--table FILE …` prints
them, from the files alone.
Without weights, calibration images or labels it says what is missing and measures what can be measured.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch

from figures.draw import draw
from figures.one_block import KEY, READINGS, Cut, measure_blocks
from figures.orders import NAMES
from figures.rows import Rows
from figures.searches import EPS_KEY, EVEN_KEY, measure_eps, measure_even
from figures.similarity import KEY as SIM_KEY
from figures.similarity import measure_sim
from figures.tables import markdown
from figures.work import Work, open_work
from patchslim.errors import PatchslimError
from patchslim.measure import device_name
from patchslim.peers.hits import to_hex

FIGURES = ("sim", "eps", "even", "layers", "acc")
LAYER_RATES, ACC_RATES = (0.1, 0.3, 0.5, 0.7, 0.9), tuple(tenth / 10 for tenth in range(1, 10))
PAPER_LAYERS, PAPER_DEPTH = (3, 7, 11), 12


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--figures", nargs="+", default=list(FIGURES), choices=FIGURES)
    add("--draw", nargs="+", type=Path, metavar="FILE", help="draw raw files, and measure nothing")
    add("--table", nargs="+", type=Path, metavar="FILE", help="print raw files as Markdown, and measure nothing")
    add("--model", default="deit_tiny_patch16_224", help="a timm name, a Hugging Face folder, or hf:NAME")
    add("--checkpoint", type=Path)
    add("--pretrained", action="store_true", help="timm's own weights")
    add("--data", help="images to choose patches by, without labels")
    add("--val", help="labelled images to measure with")
    add("--images", type=int, default=256, help="how many of --data")
    add("--limit", type=int, help="how many of --val; all")
    add("--out", type=Path, default=Path("results"))
    add("--tag", default="", help="added to the names of the files, such as h200_torch2.11_fp32")
    add("--resume", action="store_true")
    add("--device")
    add("--batch-size", type=int, default=250, help="of measuring")
    add("--memory-gib", type=float, default=16.0, help="images beyond it are decoded anew in every pass")
    add("--seed", type=int, default=0)
    add("--tolerances", nargs="+", type=float, help="eps: instead of the usual ones of each mode")
    add("--ratio", type=float, default=0.55, help="even: MACs kept")
    add("--rates", nargs="+", type=float, help="layers, acc: shares of patches that go")
    add("--score", default="impact", choices=NAMES, help="layers: what patches go by")
    add("--scores", nargs="+", default=["impact", "effect", "attention", "random", "radial"], choices=NAMES, help="acc")
    add("--random-seeds", nargs="+", type=int, default=[0, 1, 2], help="acc: draws of the random score")
    add("--at", nargs="+", type=int, help="acc: blocks, from 1; 3, 7 and 11, or as deep in a network of fewer blocks")
    add("--removed", nargs="+", default=list(READINGS), choices=READINGS, help="layers, acc: how to prune one block")
    return parser.parse_args(words)


def measurers(args: argparse.Namespace, work: Work) -> dict[str, tuple[Sequence[str], Callable[[Rows], None]]]:
    """Each figure's key and what measures it."""
    depth = work.host.info.depth
    at = args.at or [block if depth >= PAPER_DEPTH else max(1, block * depth // PAPER_DEPTH) for block in PAPER_LAYERS]
    if not all(1 <= block <= depth for block in at):
        raise PatchslimError(f"{args.model} has blocks 1 to {depth}; --at names others.")
    if not all(0 < rate < 1 for rate in args.rates or ()):
        raise PatchslimError("A pruning rate lies between 0 and 1; --rates has others.")
    lone = [Cut(args.score, args.seed, way, rate) for way, rate in product(args.removed, args.rates or LAYER_RATES)]
    named = [(name, seed) for name in args.scores for seed in (args.random_seeds if name == "random" else [args.seed])]
    rates = args.rates or ACC_RATES
    many = [Cut(name, seed, way, rate) for (name, seed), way, rate in product(named, args.removed, rates)]
    return {
        "sim": (SIM_KEY, partial(measure_sim, work)),
        "eps": (EPS_KEY, lambda rows: measure_eps(work, rows, args.tolerances)),
        "even": (EVEN_KEY, lambda rows: measure_even(work, rows, args.ratio)),
        "layers": (KEY, lambda rows: measure_blocks(work, rows, range(1, depth + 1), lone)),
        "acc": (KEY, lambda rows: measure_blocks(work, rows, sorted(set(at)), many)),
    }


def head(figure: str, work: Work, command: str) -> dict[str, Any]:
    """Where and on what a figure is measured."""
    info, base = work.host.info, work.base
    return {
        "figure": figure,
        "model": work.started["model"],
        "command": command,
        "device": device_name(work.device),
        "torch": torch.__version__,
        "dtype": "float32",
        "depth": info.depth,
        "patches": info.patches,
        "macs": work.macs,
        "calibration_images": 0 if work.images is None else len(work.images),
        "images": None if base is None else len(base),
        "base_top1": None if base is None else float(base.double().mean() * 100),
        "base_right": None if base is None else to_hex(base),
        "missing": work.missing,
    }


def command_of(words: Sequence[str]) -> str:
    """The command without the folders of one machine."""
    names = (word if word.startswith(("-", "hf:")) or "/" not in word else Path(word).name for word in words)
    return shlex.join(["python", "benchmarks/paper_figures.py", *names])


def measure(args: argparse.Namespace, command: str) -> None:
    """All figures asked for, each drawn as soon as it is measured."""
    work = open_work(args)
    if work.missing:
        print(f"Missing: {', '.join(work.missing)}. Measured is what can be without.", file=sys.stderr, flush=True)
    known = measurers(args, work)
    for name in args.figures:
        parts = ["figure", name, re.sub(r"[^A-Za-z0-9.]+", "_", args.model), args.tag]
        path = args.out / ("_".join(part for part in parts if part) + ".json")
        key, fill = known[name]
        rows = Rows(path, key, work.started, partial(head, name, work, command), args.resume)
        fill(rows)
        if not rows.rows:
            print(f"{name}: nothing to measure without {' and '.join(work.missing)}.", file=sys.stderr, flush=True)
        elif find_spec("matplotlib") is None:
            print(f"{path} (no matplotlib here: draw it elsewhere with --draw)", flush=True)
        else:
            print(draw(path), flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, or draw what was measured; bad input is one sentence and exit code 2."""
    args = parse(words)
    try:
        if args.draw is None and args.table is None:
            measure(args, command_of(sys.argv[1:] if words is None else words))
        for path in args.draw or ():
            print(draw(path), flush=True)
        for path in args.table or ():
            print("\n".join(markdown(path)), end="\n\n", flush=True)
    except PatchslimError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
