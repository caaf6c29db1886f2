"""Files written whole or not at all, and read with errors a person understands."""

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patchslim.errors import PatchslimError, RunError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it takes `path`'s place at once, on failure it vanishes."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    temporary.touch()
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON whole or not at all."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def read_json(path: Path, error: Callable[[str], PatchslimError], what: str) -> dict[str, Any]:
    """The JSON object in a file; `error` is raised with a sentence when there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"There is no {what} at {path}.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"The {what} {path} can't be read: {problem}.") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"The {what} {path} is not JSON: {problem}.") from None
    if not isinstance(data, dict):
        raise error(f"The {what} {path} is not a JSON object.")
    return data


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], what: str, advice: str) -> None:
    """Raise RunError when something was started with other settings, weights or images than those it goes on with."""
    for name, value in now.items():
        if before.get(name) != value:
            raise RunError(f"{what} was started with other {name} ({_difference(before.get(name), value)}); {advice}.")


def _difference(before: Any, now: Any) -> str:
    """The first thing two settings differ in."""
    if isinstance(before, dict) and isinstance(now, dict):
        name = next(key for key in {**now, **before} if before.get(key) != now.get(key))
        return f"{name} {_difference(before.get(name), now.get(name))}"
    return f"{before}, now {now}"
