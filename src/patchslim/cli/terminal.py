"""What a person sees: results, notes, and how a search, a recovery and a comparison go on."""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from patchslim.events import Event, Listener

if TYPE_CHECKING:
    from patchslim.hosts import HostInfo

console = Console(stderr=True, markup=False, emoji=False)  # everything but results; a name may have brackets

CANDIDATES = 130  # a measured search takes about so many; the bar is a guess
# What a search is doing, and how that goes, by event.
DOING: dict[str, tuple[str, Callable[[Event], str]]] = {
    "block": ("scoring", lambda event: f"block {event['block']}{', tuning' if event['tune'] else ''}"),
    "blocks": ("measuring", "at most {blocks} blocks".format_map),
    "candidate": ("measuring", "candidate {number}: error {error:.3g}, best {best:.3g}".format_map),
    "decided": ("scoring", "block {block}: {patches} patches".format_map),
    "distances": ("learning", "how far apart patches are".format_map),
    "error": ("scoring", "block {block}: {patches} patches, error {error:.3g}".format_map),
    "exact": ("scoring", "exact scores of every image".format_map),
    "learning": ("learning", "patches per block: {patches_per_block}".format_map),
    "selector": ("training G", "block {block}".format_map),
    "stage": ("removing", lambda event: f"{event['macs_ratio']:.3f} of the MACs: {_known(event['error'])}"),
    "timing": ("timing", "{what}".format_map),
    "tolerance": ("scoring", "tolerance {tolerance:.3g}".format_map),
}
STAGES = {"blocks": "block by block", "distillation": "distilling", "supervised": "with labels"}


def report(result: Mapping[str, Any], as_json: bool, text: str) -> None:
    """The command's result on standard output, as JSON or for reading."""
    print(json.dumps(result) if as_json else text, flush=True)


def note_skipped(skipped: int, total: int) -> None:
    """Say how many images could not be read, if any."""
    if skipped:
        console.print(f"{skipped} of {total} images could not be read and were left out.")


def table_lines(table: Table, width: int) -> list[str]:
    """A table as lines of text."""
    page = io.StringIO()
    Console(file=page, width=width).print(table)
    return [line.rstrip() for line in page.getvalue().splitlines()]


@contextmanager
def shown(what: str, total: int | None = None, now: str = "", *more: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A bar on the terminal; gives a function that moves it: `description`, `now`, `completed`, `advance`, `total`."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    with Progress(*columns, *more, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield partial(progress.update, progress.add_task(what, total=total, now=now))


@contextmanager
def show_search(info: "HostInfo") -> Iterator[Listener]:
    """A listener that moves a bar, block by block or candidate by candidate."""
    with shown("searching", info.depth, "computing features") as move:

        def listen(event: Event) -> None:
            if event["event"] in DOING:
                doing, words = DOING[event["event"]]
                move(description=doing, now=words(event), completed=_done(event, info))

        yield listen


def _known(error: float | None) -> str:
    return "taking derivatives" if error is None else f"error {error:.3g}"


def _done(event: Event, info: "HostInfo") -> int | None:
    """Blocks that are done, as far as an event tells."""
    kind = event["event"]
    if kind == "block":  # Algorithm 1 goes from the last to the first
        return int(info.depth - event["block"])
    if kind == "candidate":
        return int(min(event["number"] * info.depth // CANDIDATES, info.depth - 1))
    return {"tolerance": 0, "selector": event.get("block")}.get(kind)


@contextmanager
def show_recovery() -> Iterator[Listener]:
    """A listener that moves a bar, step by step through a stage, with the time that is left of it."""
    with shown("recovering", None, "measuring", TimeRemainingColumn()) as move:
        stage: Any = None

        def listen(event: Event) -> None:
            nonlocal stage
            kind = event["event"]
            if kind == "step":
                if event["stage"] != stage:
                    stage = event["stage"]
                    move(total=event["total"], description=STAGES[stage], now="")
                move(completed=event["done"])
            elif kind == "epoch":
                move(now=f"epoch {event['epoch']}: held-out loss {event['held_out']:.4g}, best {event['best']:.4g}")
            elif kind == "reconstructed":
                move(now=f"block {event['block']}: error {event['after']:.3g}")
            elif kind == "skipped":
                console.print(f"Block-wise reconstruction is left out: {event['reason']}.")

        yield listen


@contextmanager
def show_comparison() -> Iterator[Listener]:
    """A listener that moves a bar, cell by cell."""
    with shown("measuring the base") as move:

        def listen(event: Event) -> None:
            kind = event["event"]
            if kind in ("cell", "row"):
                words = event["cell"] if kind == "cell" else ""
                move(description=words, total=event["total"], completed=event["done"], now="")
            elif kind == "epoch":
                move(now=f"recovering, epoch {event['epoch']} of {event['epochs']}")
            elif kind in DOING:
                move(now=DOING[kind][1](event))

        yield listen
