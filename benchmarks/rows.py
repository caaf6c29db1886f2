"""The one schema of results: a row says what was measured, of what, on what, by which command, and when.

`results/` holds one file per device. A row replaces an older one that answers the same question of the same thing.
"""

from __future__ import annotations

import datetime
import fcntl
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from patchslim.errors import DataError
from patchslim.exports.cpu import this_cpu
from patchslim.files import explain, read_json, write_json
from patchslim.timing import device_name
from patchslim.version import __version__

RESULTS = Path(__file__).parent.parent / "results"
# What makes two rows answers to the same question.
KEY = (
    "question",
    "model",
    "method",
    "settings",
    "target_macs",
    "image_size",
    "seed",
    "images",
    "recovery_epochs",
    "batch_size",
    "dtype",
    "threads",
    "point",
)


class Row(BaseModel):
    """One thing measured. What does not apply is None, and is not written."""

    model_config = ConfigDict(extra="forbid")

    question: str  # accuracy, speed, search, …
    model: str
    method: str  # `host` for the model as it comes
    settings: dict[str, Any] = Field(default_factory=dict)  # of the method, where they are not its defaults
    target_macs: float | None = None
    macs: int | None = None  # per image
    macs_ratio: float | None = None
    parameters: int | None = None
    image_size: int | None = None
    patches_per_block: list[int] | None = None
    seed: int | None = None
    images: int | None = None  # unlabelled, to choose by

    val_images: int | None = None
    top1: float | None = None  # percent, with its 95 % interval (Wilson)
    top1_low: float | None = None
    top1_high: float | None = None
    top5: float | None = None
    lost: float | None = None  # points of top-1 below the host on the same images, 95 % interval (Tango)
    lost_low: float | None = None
    lost_high: float | None = None
    error: float | None = None  # relative, of what the head reads, on images that were not chosen by
    error_images: int | None = None
    recovery_epochs: int | None = None
    recovery_images: int | None = None
    recovery_seconds: float | None = None

    search_seconds: float | None = None
    search_passes: float | None = None  # its time over that of one forward pass of the host over the same images
    peak_memory_gib: float | None = None

    batch_size: int | None = None
    dtype: str | None = None
    images_per_second: float | None = None  # in the fastest mode
    mode: str | None = None
    speedup: float | None = None  # over the host as it comes, in its own fastest mode, in the same run
    speedup_same_embedding: float | None = None  # over the host with the same patch embedding
    modes: dict[str, float] | None = None  # images per second in every mode

    point: dict[str, Any] | None = None  # where in a figure, a file format, … that its columns above do not say
    values: dict[str, float] | None = None  # numbers that have no column above

    reason: str | None = None  # why the numbers are missing
    note: str | None = None
    device: str
    threads: int | None = None  # on a CPU
    versions: dict[str, str]
    command: str
    date: str

    @property
    def key(self) -> tuple[str, ...]:
        """What it answers."""
        return tuple(repr(getattr(self, name)) for name in KEY)


def about(device: torch.device) -> dict[str, Any]:
    """Where, with what, by which command and when: the part that all rows of a run share."""
    words = ["python", "-m", "benchmarks", *(_short(word) for word in sys.argv[1:])]
    return {
        "device": device_name(device) if device.type == "cuda" else this_cpu().name,
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "versions": {
            "patchslim": __version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        },
        "command": shlex.join(words),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }


def _short(word: str) -> str:
    """A word of a command; of a path only its last part, as where files lie is nobody's business."""
    return word if word.startswith("hf:") else re.sub(r"[^=\s]*/(?=[^/\s])", "", word)


def file_of(device: str, folder: Path = RESULTS) -> Path:
    """The file of a device's rows."""
    return folder / f"{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}.json"


def read_rows(folder: Path = RESULTS) -> Iterator[Row]:
    """Every row of every device."""
    for path in sorted(folder.glob("*.json")):
        yield from _rows_in(path)


def _rows_in(path: Path) -> list[Row]:
    found = read_json(path, DataError, "file of results")
    if not isinstance(found.get("rows"), list):
        raise DataError(f"{path} holds no rows; files of results have a list of them.")
    try:
        return [Row.model_validate(row) for row in found["rows"]]
    except ValidationError as error:
        raise DataError(f"{path} holds a row that is none: {explain(error)}.") from None


def keep(rows: Iterable[Row], folder: Path = RESULTS) -> None:
    """Put rows into the file of their device, each in the place of an older one that answers the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parts of a benchmark may run beside one another
        for row in rows:
            path = file_of(row.device, folder)
            found = {own.key: own for own in (_rows_in(path) if path.exists() else [])} | {row.key: row}
            write_json(path, {"rows": [own.model_dump(exclude_none=True) for own in found.values()]})
