"""A figure's raw file: where and on what it was measured, and its rows, on disk as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from patchslim.errors import RunError
from patchslim.files import check_same, read_json, write_json

Row = dict[str, Any]


class Rows:
    """The rows of one figure. `key` names the columns that tell one row from another."""

    def __init__(
        self,
        path: Path,
        key: Iterable[str],
        started: Mapping[str, Any],
        head: Callable[[], Mapping[str, Any]],
        resume: bool = False,
    ) -> None:
        self.path, self.key = path, tuple(key)
        self.began, self.before = time.monotonic(), 0.0
        if path.exists() and not resume:
            raise RunError(f"{path} is there already; go on with --resume, or choose another --out or --tag.")
        if path.exists():
            self.table = read_json(path, RunError, "figure")
            check_same(self.table.get("started", {}), started, str(path), "choose another --out or --tag")
            self.before = float(self.table.get("seconds", 0.0))
        else:
            self.table = {**head(), "started": dict(started), "rows": []}

    @property
    def rows(self) -> list[Row]:
        """Those that are done."""
        found: list[Row] = self.table["rows"]
        return found

    def done(self, row: Mapping[str, Any]) -> bool:
        """Whether a row with the same key is there."""
        wanted = [row[name] for name in self.key]
        return any([other[name] for name in self.key] == wanted for other in self.rows)

    def add(self, *rows: Row) -> None:
        """Keep rows, on disk before this returns."""
        self.rows.extend(rows)
        self.table["seconds"] = round(self.before + time.monotonic() - self.began, 1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.table)
