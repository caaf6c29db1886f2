"""What a search has found out, so that it serves other ratios and an interrupted search goes on where it was.

A search is deterministic, so resuming is running it again with a memory: every entry is one line of `cache.jsonl`,
written after its weights. A line cut short by a crash is ignored.
"""

import copy
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.errors import PatchslimError, RunError
from patchslim.hosts.weights import load_weights_, write_weights

Key = tuple[Any, ...]
ENTRIES = "cache.jsonl"
ABOUT: Key = ("about",)  # what the others were found out about


class Cache:
    """Entries by key, in memory and, given a folder, on disk."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.entries: dict[str, dict[str, Any]] = {}
        self.modules: dict[str, nn.Module] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._read(folder / ENTRIES)

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        whole = 0
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                entry = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            if not (isinstance(entry, dict) and "key" in entry):
                raise RunError(f"{path} is damaged, so the search can't be resumed; remove the folder and start again.")
            whole += len(line)
            self.entries[entry.pop("key")] = entry
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
        name = json.dumps(key)
        if module is not None:
            self.modules[name] = module
        if self.folder is not None:
            if module is not None:
                write_weights(self._weights(name), module.state_dict())
            with (self.folder / ENTRIES).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": name} | entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self.entries[name] = entry

    def module(self, key: Key, like: nn.Module) -> nn.Module:
        """The module of an entry; `like` gives its structure."""
        name = json.dumps(key)
        if name not in self.modules:
            found = copy.deepcopy(like)
            try:
                load_weights_(found, self._weights(name))
            except PatchslimError as error:
                raise RunError(f"The search can't be resumed: {error}") from None
            self.modules[name] = found
        return self.modules[name]

    def _weights(self, name: str) -> Path:
        if self.folder is None:
            raise KeyError(name)
        return self.folder / f"module-{hashlib.sha256(name.encode()).hexdigest()[:16]}.safetensors"
