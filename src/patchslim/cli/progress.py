"""A search as seen on a terminal and in log.jsonl."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from patchslim.cli.common import console
from patchslim.hosts import HostInfo
from patchslim.search.topdown import Listener


@contextmanager
def show_search(info: HostInfo, log: Path | None = None) -> Iterator[Listener]:
    """A listener that moves a bar block by block and, given a file, logs every event as a line of JSON."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("searching", total=info.depth, now="computing features")
        start = time.monotonic()

        def listen(event: Mapping[str, Any]) -> None:
            if log is not None:
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"seconds": round(time.monotonic() - start, 3)} | dict(event)) + "\n")
            description, now, done = _words(event, info)
            progress.update(task, description=description, completed=done)
            if now is not None:
                progress.update(task, now=now)

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
    if kind == "error":
        return None, f"block {event['block']}: {event['patches']} patches, error {event['error']:.3g}", None
    return None, None, None
