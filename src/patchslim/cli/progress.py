"""A search and a recovery as seen on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from patchslim.cli.common import console
from patchslim.hosts import HostInfo
from patchslim.search.topdown import Listener

CANDIDATES = 130  # a measured search takes about so many; the bar is a guess


@contextmanager
def show_search(info: HostInfo) -> Iterator[Listener]:
    """A listener that moves a bar, block by block or candidate by candidate."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("searching", total=info.depth, now="computing features")

        def listen(event: Mapping[str, Any]) -> None:
            description, now, done = _words(event, info)
            progress.update(task, description=description, completed=done)
            if now is not None:
                progress.update(task, now=now)

        yield listen


STAGES = {"blocks": "block by block", "distillation": "distilling", "supervised": "with labels"}


@contextmanager
def show_recovery() -> Iterator[Listener]:
    """A listener that moves a bar, step by step through a stage, with the time that is left of it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("recovering", total=None, now="measuring")
        stage = ""

        def listen(event: Mapping[str, Any]) -> None:
            nonlocal stage
            kind = event["event"]
            if kind == "step":
                if event["stage"] != stage:  # a clock of its own for every stage
                    stage = event["stage"]
                    progress.reset(task, total=event["total"], description=STAGES[stage], now="")
                progress.update(task, completed=event["done"])
            elif kind == "epoch":
                words = f"epoch {event['epoch']}: held-out loss {event['held_out']:.4g}, best {event['best']:.4g}"
                progress.update(task, now=words)
            elif kind == "reconstructed":
                progress.update(task, now=f"block {event['block']}: error {event['after']:.3g}")
            elif kind == "skipped":
                console.print(f"Block-wise reconstruction is left out: {event['reason']}.")

        yield listen


def _words(event: Mapping[str, Any], info: HostInfo) -> tuple[str | None, str | None, int | None]:
    """(description, state, blocks done) that an event changes on the bar."""
    kind = event["event"]
    if kind == "tolerance":
        return f"tolerance {event['tolerance']:.3g}", None, 0
    if kind == "block":
        return (
            "tuning" if event["tune"] else None,
            f"block {event['block']}: scoring",
            info.depth - event["block"],
        )
    if kind == "stage":
        error = "taking derivatives" if event["error"] is None else f"error {event['error']:.3g}"
        return "removing", f"{event['macs_ratio']:.3f} of the MACs: {error}", None
    if kind == "timing":
        return "timing", event["what"], None
    if kind == "exact":
        return "scoring", "exact scores of every image", None
    if kind == "distances":
        return "learning", "how far apart patches are", None
    if kind == "predictor":
        return "training G", f"block {event['block']}", event["block"]
    if kind == "candidate":
        words = f"candidate {event['number']}: error {event['error']:.3g}, best {event['best']:.3g}"
        return "measuring", words, min(event["number"] * info.depth // CANDIDATES, info.depth - 1)
    if kind == "error":
        return None, f"block {event['block']}: {event['patches']} patches, error {event['error']:.3g}", None
    return None, None, None
