"""A comparison on disk: a file for each finished cell, so that an interrupted one goes on with what is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patchslim.errors import RunError
from patchslim.files import check_same, read_json, write_json
from patchslim.runs.folder import OTHERWISE, alone

STARTED, CELLS, WORKING, RESULT = "started.json", "cells", "working", "comparison.json"
Row = dict[str, Any]


def cell_name(method: str, ratio: float) -> str:
    """A cell's file."""
    return f"{method}@{ratio:g}"


class Store:
    """A comparison's folder; without one nothing is kept."""

    def __init__(self, folder: Path | None, started: Mapping[str, Any]) -> None:
        self.folder, self.started = folder, started

    @contextmanager
    def opened(self, resume: bool) -> Iterator[None]:
        """Work in the folder, alone, on what was started there and nothing else."""
        if self.folder is None:
            yield
            return
        check_place(self.folder, resume)
        fresh = not self.folder.exists()
        (self.folder / CELLS).mkdir(parents=True, exist_ok=True)
        try:
            with alone(self.folder, CELLS):
                self._check_started()
                yield
                shutil.rmtree(self.folder / WORKING, ignore_errors=True)
        except BaseException:
            if fresh and not any((self.folder / CELLS).glob("*.json")):
                shutil.rmtree(self.folder)
            raise

    def _check_started(self) -> None:
        assert self.folder is not None
        path = self.folder / STARTED
        if path.exists():
            check_same(read_json(path, RunError, "comparison's settings"), self.started, str(self.folder), OTHERWISE)
        else:
            write_json(path, self.started)

    def get(self, name: str) -> Row | None:
        """A cell that is done."""
        if self.folder is None or not self._path(name).exists():
            return None
        return read_json(self._path(name), RunError, "comparison's cell")

    def put(self, name: str, row: Row) -> None:
        """Keep a cell, on disk before this returns."""
        if self.folder is not None:
            write_json(self._path(name), row)
            shutil.rmtree(self.folder / WORKING / name, ignore_errors=True)

    def working(self, name: str) -> Path | None:
        """A folder for what is in the making."""
        return None if self.folder is None else self.folder / WORKING / name

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / CELLS / f"{name}.json"


def check_place(folder: Path, resume: bool) -> None:
    """Raise RunError unless a comparison may be written, or gone on with, in this folder."""
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        raise RunError(f"{folder} is no folder; choose another with --out.")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / STARTED).exists():
        raise RunError(f"{folder} is not empty and holds no comparison; choose another folder with --out.")
    if not resume:
        raise RunError(f"{folder} already holds a comparison; go on with --resume, or choose another with --out.")
