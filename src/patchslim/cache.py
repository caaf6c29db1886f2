"""What a search has found out, so that it serves other ratios and an interrupted search goes on where it was.

A search is deterministic, so resuming is running it again with a memory: every entry is one line of `cache.jsonl`,
written after its weights. A line cut short by a crash is ignored. Every line carries a checksum of itself, of what was
searched and of its weights: one that is damaged, or another search's, is told.
"""

import copy
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.errors import PatchslimError, RunError
from patchslim.files import Digest, digest, is_as, opened, sealed, unsealed
from patchslim.hosts.weights import load_weights_, write_weights

Key = tuple[Any, ...]
ENTRIES = "cache.jsonl"
ABOUT: Key = ("about",)  # what the others were found out about
LONGEST = 2**24  # bytes of a line
MODULE = "module"  # of an entry: the file of its weights, and their digest


def begun(folder: Path) -> bool:
    """Whether a folder holds an entry."""
    if not (folder / ENTRIES).is_file():
        return False
    with opened(folder / ENTRIES) as file:
        return file.readline(LONGEST).endswith(b"\n")


class Cache:
    """Entries by key, in memory and, given a folder, on disk. `about` says what is searched, and how."""

    def __init__(self, folder: Path | None = None, about: Mapping[str, Any] | None = None) -> None:
        self.folder, self.about = folder, about or {}
        self.entries: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, Any]] = {}  # by key, the file of an entry's module, and its digest
        self.modules: dict[str, nn.Module] = {}
        self.lines = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._read(folder / ENTRIES)

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        whole = 0
        with opened(path) as file:
            while (line := file.readline(LONGEST)) and (line.endswith(b"\n") or len(line) == LONGEST):
                try:
                    entry = unsealed(json.loads(line), self.about)
                except (ValueError, RecursionError):
                    entry = None
                if entry is None:
                    told = f"{path} is damaged, so the search can't be resumed; remove the folder and start again."
                    raise RunError(told)
                name = entry.pop("key")
                if MODULE in entry:
                    self.files[name] = entry.pop(MODULE)
                self.entries[name] = entry
                whole, self.lines = whole + len(line), self.lines + 1
        os.truncate(path, whole)  # what a crash cut short must not run into the next line

    def belong_to(self, about: Mapping[str, Any]) -> None:
        """Note what is searched, the first time; RunError when what is here was found out about something else."""
        asked = json.loads(json.dumps(about))
        known = self.get(ABOUT)
        if known is None and not self.entries:
            self.put(ABOUT, asked)
        elif known != asked:
            other = next((name for name in asked if known and known.get(name) != asked[name]), "search")
            raise RunError(f"The cache in {self.folder} is of another {other}; choose another folder.")

    def get(self, key: Key) -> dict[str, Any] | None:
        """The entry under a key, if there is one."""
        return self.entries.get(json.dumps(key))

    def once(self, key: Key, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The entry under a key, made and kept the first time it is asked for."""
        entry = self.get(key)
        if entry is None:
            entry = make()
            self.put(key, entry)
        return entry

    def put(self, key: Key, entry: dict[str, Any], module: nn.Module | None = None) -> None:
        """Keep an entry, with a module where there is one; on disk before this returns."""
        name, line = json.dumps(key), dict(entry)
        if module is not None:
            self.modules[name] = module
        if self.folder is not None:
            if module is not None:  # under a name of its own, so that a crash leaves the entry before as it was
                path = self.folder / f"module-{self.lines:06d}.safetensors"
                write_weights(path, module.state_dict())
                self.files[name] = line[MODULE] = {"file": path.name} | asdict(digest(path))
            with (self.folder / ENTRIES).open("a", encoding="utf-8") as file:
                file.write(json.dumps(sealed({"key": name} | line, self.about)) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self.lines += 1
        self.entries[name] = entry

    def module(self, key: Key, like: nn.Module) -> nn.Module:
        """The module of an entry; `like` gives its structure."""
        name = json.dumps(key)
        if name not in self.modules:
            if self.folder is None:
                raise KeyError(name)
            found, kept = copy.deepcopy(like), self.files[name]
            path = self.folder / kept["file"]
            try:
                if path.is_file() and not is_as(path, Digest(kept["size"], kept["sha256"])):
                    raise RunError(f"{path} is damaged; remove the folder and start again.")
                load_weights_(found, path)
            except PatchslimError as error:
                raise RunError(f"The search can't be resumed: {error}") from None
            self.modules[name] = found
        return self.modules[name]
