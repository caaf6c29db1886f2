"""Files written whole or not at all, and read with errors a person understands.

Only plain files are ever opened: a pipe, a device or a folder in a file's place is refused before a byte is read.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from patchslim.errors import PatchslimError, RunError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

MOST_JSON = 2**24  # bytes: a plan of a million patches has eight million
SEAL = "sha256"  # the key of a sealed object's own digest
Schema = TypeVar("Schema", bound="BaseModel")


@dataclass(frozen=True)
class Digest:
    """Size and SHA-256 of a file: what tells whether it is as it was written."""

    size: int
    sha256: str


def opened(path: Path) -> BufferedReader:
    """Open a plain file for reading; OSError, before a byte is read, where there is a pipe, a device or a folder."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return path.open("rb")


def digest(path: Path) -> Digest:
    """The digest of a plain file; OSError where there is none."""
    with opened(path) as file:
        return Digest(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def is_as(path: Path, wanted: Digest) -> bool:
    """Whether a plain file has this digest; a file of another size is not read."""
    try:
        return path.stat().st_size == wanted.size and digest(path) == wanted
    except OSError:
        return False


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it takes `path`'s place at once, on failure it vanishes."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    temporary.touch()
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove what killed writes of a file have left beside it; for one who alone writes it."""
    for left in path.parent.glob(f".{path.name}.*.part"):
        left.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes that ask for it waiting, while a plain file's lock is held; nothing where locks are not."""
    with opened(path) as file:
        _lock(file, "LOCK_EX")
        try:
            yield
        finally:
            _lock(file, "LOCK_UN")  # a process that was forked meanwhile has the file open too


def _lock(file: BufferedReader, how: str) -> None:
    try:
        import fcntl

        fcntl.flock(file, getattr(fcntl, how))
    except (ImportError, OSError):  # this system, or the file's, has no such locks
        pass


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def json_text(data: Any) -> str:
    """Indented JSON, as all files here have it."""
    return json.dumps(data, indent=2) + "\n"


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON whole or not at all."""
    write_text(path, json_text(data))


def read_json(path: Path, error: Callable[[str], PatchslimError], what: str) -> dict[str, Any]:
    """The JSON object in a file; `error` is raised with a sentence when there is none."""
    try:
        with opened(path) as file:
            text = file.read(MOST_JSON + 1)
        if len(text) > MOST_JSON:
            raise ValueError(f"it is larger than {MOST_JSON >> 20} MiB")
        data = json.loads(text.decode("utf-8"))
    except FileNotFoundError:
        raise error(f"There is no {what} at {path}.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"The {what} {path} can't be read: {getattr(problem, 'strerror', None) or problem}.") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"The {what} {path} is not JSON: {problem}.") from None
    if not isinstance(data, dict):
        raise error(f"The {what} {path} is not a JSON object.")
    return data


def checked(schema: type[Schema], data: Any, error: Callable[[str], PatchslimError], what: str) -> Schema:
    """Data as a schema has it; `error` is raised with the first complaint."""
    from pydantic import ValidationError

    try:
        return schema.model_validate(data)
    except ValidationError as problem:
        raise error(f"{what} is not valid: {explain(problem)}.") from None


def explain(error: "ValidationError") -> str:
    """The first complaint of a pydantic error as one phrase."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key {where!r}"
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def write_sealed(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON object with its own digest in it."""
    plain = json.loads(json.dumps(data))  # as it will be read
    write_json(path, plain | {SEAL: _seal(plain)})


def read_sealed(path: Path, error: Callable[[str], PatchslimError], what: str) -> dict[str, Any]:
    """What `write_sealed` wrote; `error` is raised when anything in it has changed since."""
    data = read_json(path, error, what)
    if data.pop(SEAL, None) != _seal(data):
        raise error(f"The {what} {path} is not as it was written.")
    return data


def _seal(data: Mapping[str, Any]) -> str:
    """The digest of an object, however its keys are ordered."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], what: str, advice: str) -> None:
    """Raise RunError when something was started with other settings, weights or images than those it goes on with."""
    for name, value in now.items():
        if before.get(name) != value:
            raise RunError(f"{what} was started with other {name} ({_difference(before.get(name), value)}); {advice}.")


def _difference(before: Any, now: Any) -> str:
    """The first thing two settings differ in."""
    if isinstance(before, dict) and isinstance(now, dict):
        name = next((key for key in {**now, **before} if before.get(key) != now.get(key)), None)
        if name is not None:
            return f"{name} {_difference(before.get(name), now.get(name))}"
        return f"with {', '.join(sorted({*before} ^ {*now}))} in one of them only"  # a key without a value
    return f"{before}, now {now}"
