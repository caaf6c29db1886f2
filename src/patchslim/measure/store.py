"""A comparison on disk: a file for each finished cell, so that an interrupted one goes on with what is left."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from patchslim.errors import RunError
from patchslim.files import read_json, write_json
from patchslim.folder import ITSELF, STARTED, check_folder, working

CELLS, WORKING, RESULT = "cells", "working", "comparison.json"
Row = dict[str, Any]


def check_place(folder: Path, resume: bool) -> None:
    """Raise RunError unless a comparison may be written, or gone on with, in this folder."""
    check_folder(folder, resume, lambda found: (found / STARTED).exists(), "comparison")


def file_name(label: str) -> str:
    """A row's label as the name of a file: the same, less what file systems take for something else."""
    return quote(label, safe="@=,")


class Store:
    """A comparison's folder; without one nothing is kept."""

    def __init__(self, folder: Path | None, started: Mapping[str, Any]) -> None:
        self.folder, self.started = folder, started

    @contextmanager
    def opened(self, resume: bool) -> Iterator[None]:
        """Work in the folder, alone, on what was started there and nothing else."""
        folder = self.folder
        if folder is None:
            yield
            return
        check_place(folder, resume)
        with working(folder, ITSELF, self.started, lambda: any((folder / CELLS).glob("*.json"))):
            yield
            shutil.rmtree(folder / WORKING, ignore_errors=True)

    def get(self, name: str) -> Row | None:
        """A cell that is done."""
        if self.folder is None or not self._path(name).exists():
            return None
        return read_json(self._path(name), RunError, "comparison's cell")

    def put(self, name: str, row: Row) -> None:
        """Keep a cell, on disk before this returns."""
        if self.folder is not None:
            self._path(name).parent.mkdir(exist_ok=True)
            write_json(self._path(name), row)
            shutil.rmtree(self.folder / WORKING / name, ignore_errors=True)

    def working(self, name: str) -> Path | None:
        """A folder for what is in the making."""
        return None if self.folder is None else self.folder / WORKING / name

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / CELLS / f"{name}.json"
