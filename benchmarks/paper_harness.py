"""What the commands of the paper's tables share: options, what is missing, a block of rows measured, files written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from harness import Remembered, in_memory
from paper_cells import Block, without_twins
from patchslim.cli.common import open_device, open_model, workers_for
from patchslim.cli.compare import check_settings
from patchslim.data import ImageSource, open_images
from patchslim.errors import CheckpointError, PatchslimError
from patchslim.files import write_json, write_text
from patchslim.measure import DTYPES, device_name, evaluate
from patchslim.measure.ranks import check_labelled
from patchslim.peers import CompareConfig, PeerConfig, SpeedConfig, compare
from patchslim.recover import RecoverConfig
from patchslim.timing.modes import modes_for
from speed_rows import SpeedBlock

HELD = 5_000  # validation images kept in memory, at most; more are decoded anew for every row


def options(doc: str | None) -> argparse.ArgumentParser:
    """The options every table has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", default=[], metavar="MODEL=FILE", help="weights by timm's model name")
    parser.add_argument("--data", help="images to choose patches by; labels are not read")
    parser.add_argument("--train", help="images to recover with; labels are not read [--data]")
    parser.add_argument("--val", help="labelled images to measure top-1 on")
    parser.add_argument("--recover", type=int, default=0, metavar="EPOCHS", help="of distillation, for every row")
    parser.add_argument("--recover-batch-size", type=int, default=256)
    parser.add_argument("--images", type=int, default=256, help="to choose patches by, a sample of --data")
    parser.add_argument("--train-images", type=int, help="to recover with, a sample of --train [all]")
    parser.add_argument("--limit", type=int, help="measure on a sample of --val")
    parser.add_argument("--epochs", type=int, default=PeerConfig().epochs, help="for methods that learn to prune")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    speed_options(parser)
    return parser


def speed_options(parser: argparse.ArgumentParser) -> None:
    """Options of timing and of output."""
    parser.add_argument("--bench-dtype", default="bfloat16", choices=list(DTYPES))
    parser.add_argument("--bench-batch-size", type=int, default=256)
    parser.add_argument("--modes", nargs="+", default=["auto"], help="eager, compiled, graph, compiled-graph or auto")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing, for each row and mode")
    parser.add_argument("--device")
    parser.add_argument("--resume", action="store_true", help="measure only what is not there yet")
    parser.add_argument("--cells", type=Path, help="folder for finished rows [comparisons/NAME]")
    parser.add_argument("--out", type=Path, required=True, help="a .json file, or a folder for it")


class Setting:
    """A command's options, made sense of."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.args = args
        self.device = open_device(args.device)
        check_settings(getattr(args, "also", []), args.bench_dtype, args.seconds)
        modes_for(args.modes, self.device, threshold=False)
        self.speed = SpeedConfig(args.bench_batch_size, args.bench_dtype, tuple(args.modes), args.seconds)
        self.out: Path = args.out if args.out.suffix == ".json" else args.out / f"{name}.json"
        self.cells: Path = args.cells or Path("comparisons") / self.out.stem
        self.weights = dict(_weight(word) for word in getattr(args, "weights", []))
        self.out.parent.mkdir(parents=True, exist_ok=True)

    def about(self) -> dict[str, Any]:
        """Where and how throughput is measured."""
        speed = asdict(self.speed) | {"modes": list(self.speed.modes)}
        return {"device": device_name(self.device), "torch": torch.__version__, "settings": {"speed": speed}}

    def missing(self, model: str) -> list[str]:
        """What is not there to measure a model's top-1."""
        known = self.weights.keys()
        lacks = {f"weights (--weights {model}=FILE)": model not in known, "labelled images (--val)": not self.args.val}
        lacks["images to choose patches by (--data)"] = not self.args.data
        return [what for what, lacking in lacks.items() if lacking]

    def block(self, block: Block) -> dict[str, Any]:
        """The rows of one model: everything if it is there, else MACs and throughput with random weights."""
        lacks = self.missing(block.model)
        if lacks:
            say(f"{block.model}: no top-1, for want of {', '.join(lacks)}; MACs and throughput with random weights.")
            found = SpeedBlock(without_twins(block), self.device, self.speed).run(self._folder(block), self.args.resume)
        else:
            found = self._compared(block)
        rows = _arranged(block, found["rows"])
        return found | {"missing": lacks, "published": block.published_base, "rows": rows}

    def top1_of(self, name: str) -> float | None:
        """A model's top-1 as it is; None where weights or images are missing."""
        if name not in self.weights or not self.args.val:
            return None
        model = open_model(name, self.weights[name])
        return evaluate(model.to(self.device), self._val(model), max(self.args.batch_size, 64)).top1

    def _folder(self, block: Block) -> Path:
        return self.cells / block.model

    def _config(self) -> CompareConfig:
        args = self.args
        peers = PeerConfig(epochs=args.epochs, batch_size=args.batch_size, seed=args.seed)
        recovery = None
        if args.recover:
            learning: dict[str, Any] = {"batch_size": args.recover_batch_size, "seed": args.seed}
            recovery = RecoverConfig(epochs=args.recover, block_epochs=0, **learning)
        return CompareConfig(peers, recovery, self.speed, eval_batch_size=max(args.batch_size, 64))

    def _compared(self, block: Block) -> dict[str, Any]:
        args, workers = self.args, workers_for(self.device)
        model = open_model(block.model, self.weights[block.model])
        images = open_images(args.data, model=model, limit=args.images, seed=args.seed, workers=workers)
        more = args.train or args.data
        train = open_images(more, model=model, limit=args.train_images, seed=args.seed, workers=workers)
        methods = list(dict.fromkeys(cell.method for cell in block.cells))
        ratios = sorted({cell.ratio for cell in block.cells})
        return compare(
            model.to(self.device),
            images,
            self._val(model),
            methods,
            ratios,
            self._config(),
            only=block.pairs,
            train=Remembered.of(train),
            folder=self._folder(block),
            resume=args.resume,
            listen=_tell_of(block.model),
        )

    def _val(self, model: torch.nn.Module) -> ImageSource:
        workers = workers_for(self.device)
        images = open_images(self.args.val, model=model, limit=self.args.limit, split="test", workers=workers)
        check_labelled(images)
        return in_memory(images) if len(images) <= HELD else images


def _weight(word: str) -> tuple[str, Path]:
    model, sign, path = word.partition("=")
    if not sign or not path:
        raise CheckpointError(f"Weights are given as MODEL=FILE, and {word} is not.")
    return model, Path(path)


def _arranged(block: Block, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the paper in its order, then the others, each with what was published beside it."""
    order = {(cell.method, cell.ratio): place for place, cell in enumerate(block.cells) if cell.published}
    known = [row | {"published": block.published(row["method"], row["target_macs"])} for row in rows]
    return sorted(known, key=lambda row: order.get((row["method"], row["target_macs"]), len(block.cells)))


def _tell_of(model: str) -> Callable[[Mapping[str, Any]], None]:
    def listen(event: Mapping[str, Any]) -> None:
        if event["event"] == "cell":
            say(f"{model}: {event['cell']}, {event['done'] + 1} of {event['total']}")

    return listen


def say(words: str) -> None:
    """To whoever waits."""
    print(words, file=sys.stderr, flush=True)


def write_files(table: Mapping[str, Any], path: Path, text: str, draw: Callable[[Path], None]) -> None:
    """The raw file, beside it the table as Markdown and, where matplotlib is there, a picture."""
    write_json(path, table)
    write_text(path.with_suffix(".md"), text)
    if find_spec("matplotlib") is None:
        say("No picture: it needs matplotlib, pip install 'patchslim[viz]'.")
    else:
        draw(path.with_suffix(".png"))


def command(main: Callable[[], None]) -> None:
    """Run a command; what a user may cause ends with one sentence and code 2."""
    try:
        main()
    except PatchslimError as error:
        say(str(error))
        sys.exit(2)
