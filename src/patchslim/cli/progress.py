"""A search and a recovery as seen on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import TimeRemainingColumn

from patchslim.cli.common import console, shown
from patchslim.events import Event, Listener
from patchslim.hosts import HostInfo

CANDIDATES = 130  # a measured search takes about so many; the bar is a guess
# What a search is doing, and how that goes, by event.
DOING: dict[str, tuple[str, Callable[[Event], str]]] = {
    "block": ("scoring", lambda event: f"block {event['block']}{', tuning' if event['tune'] else ''}"),
    "blocks": ("measuring", lambda event: f"at most {event['blocks']} blocks"),
    "candidate": (
        "measuring",
        lambda event: f"candidate {event['number']}: error {event['error']:.3g}, best {event['best']:.3g}",
    ),
    "decided": ("scoring", lambda event: f"block {event['block']}: {event['patches']} patches"),
    "distances": ("learning", lambda event: "how far apart patches are"),
    "error": (
        "scoring",
        lambda event: f"block {event['block']}: {event['patches']} patches, error {event['error']:.3g}",
    ),
    "exact": ("scoring", lambda event: "exact scores of every image"),
    "learning": ("learning", lambda event: f"patches per block: {event['patches_per_block']}"),
    "selector": ("training G", lambda event: f"block {event['block']}"),
    "stage": (
        "removing",
        lambda event: (
            f"{event['macs_ratio']:.3f} of the MACs: "
            + ("taking derivatives" if event["error"] is None else f"error {event['error']:.3g}")
        ),
    ),
    "timing": ("timing", lambda event: str(event["what"])),
    "tolerance": ("scoring", lambda event: f"tolerance {event['tolerance']:.3g}"),
}
STAGES = {"blocks": "block by block", "distillation": "distilling", "supervised": "with labels"}


@contextmanager
def show_search(info: HostInfo) -> Iterator[Listener]:
    """A listener that moves a bar, block by block or candidate by candidate."""
    with shown("searching", info.depth, "computing features") as move:

        def listen(event: Event) -> None:
            if event["event"] in DOING:
                doing, words = DOING[event["event"]]
                move(description=doing, now=words(event), completed=_done(event, info))

        yield listen


def _done(event: Event, info: HostInfo) -> int | None:
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
