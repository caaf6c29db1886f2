"""Files written whole or not at all, and read with errors a person understands.

Only plain files are ever opened: a pipe, a device or a folder in a file's place is refused before a byte is read.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from patchslim.errors import PatchslimError, RunError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

MOST_LEVELS = 50  # of nesting
MOST_JSON = 2**24  # bytes: a plan of a million patches has eight million
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.patchslim")  # the name of a file that is still being written
DRAFTS = ".drafts"  # ends the name of a folder beside such a file
BOUNDS = ("memory_gib", "cache_gib")  # settings that bound memory: work under any of them finds the same
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


def hold(file: IO[Any]) -> bool | None:
    """Whether this process now holds an open file; the system frees it when the file is closed or the process dies.

    False where another process holds it, None where this system, or the file's, has no such locks.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it takes `path`'s place at once, on failure it vanishes.

    It is held meanwhile, which tells it from one whose writer was killed.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary, file = _begin(path)
    with file:
        try:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def drafts(path: Path) -> Iterator[Path]:
    """Give an empty folder beside `path` to make a file in that several writers have a part in; then it vanishes."""
    marker, file = _begin(path)
    folder = marker.with_suffix(DRAFTS)
    with file:
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            marker.unlink(missing_ok=True)


def _begin(path: Path) -> tuple[Path, IO[bytes]]:
    """A new file beside `path`, held by this process."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.patchslim")
        file = temporary.open("xb")
        held = hold(file)
        if held is None:  # Windows replaces no file that is open
            file.close()
        if held is not False and temporary.exists():
            return temporary, file
        file.close()  # another process took it for a leftover before it was held


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes have left beside a file that they were writing."""
    _remove_unheld(path.parent.glob(f".{escape(path.name)}.*.patchslim"))


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes were writing anywhere below a folder, and nothing else."""
    _remove_unheld(folder.rglob(".*.patchslim"))


def _remove_unheld(paths: Iterable[Path]) -> None:
    """Remove, of files that may be unfinished, those that are and that no process is writing."""
    with suppress(OSError):  # folders that can't be listed
        for path in paths:
            if UNFINISHED.fullmatch(path.name) and path.is_file():
                with suppress(OSError), path.open("r+b") as file:
                    if hold(file):
                        shutil.rmtree(path.with_suffix(DRAFTS), ignore_errors=True)
                        path.unlink()


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
        if not _is_flat(data):
            raise ValueError(f"it is nested more than {MOST_LEVELS} deep")
    except FileNotFoundError:
        raise error(f"There is no {what} at {path}.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"The {what} {path} can't be read: {getattr(problem, 'strerror', None) or problem}.") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"The {what} {path} is not JSON: {problem}.") from None
    if not isinstance(data, dict):
        raise error(f"The {what} {path} is not a JSON object.")
    return data


def _is_flat(data: Any) -> bool:
    """Whether JSON data is nested no deeper than ours ever is: deeper, comparing or printing it would fail."""
    level = [data]
    for _ in range(MOST_LEVELS):
        inner = [own.values() if isinstance(own, dict) else own for own in level if isinstance(own, (dict, list))]
        level = [own for values in inner for own in values]
    return not level


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


def sealed(data: Mapping[str, Any], about: Any = None) -> dict[str, Any]:
    """A JSON object with its own digest in it, which is also that of what it is about, if that is given."""
    plain = json.loads(json.dumps(data))  # as it will be read
    return {SEAL: _seal(plain, about), **plain}


def unsealed(data: Any, about: Any = None) -> dict[str, Any] | None:
    """What `sealed` was given; None when anything in it has changed since, or it is about something else."""
    if not isinstance(data, dict):
        return None
    plain = {name: value for name, value in data.items() if name != SEAL}
    return plain if data.get(SEAL) == _seal(plain, about) else None


def write_sealed(path: Path, data: Mapping[str, Any], about: Any = None) -> None:
    """Write a JSON object with its own digest in it."""
    write_json(path, sealed(data, about))


def read_sealed(path: Path, error: Callable[[str], PatchslimError], what: str, about: Any = None) -> dict[str, Any]:
    """What `write_sealed` wrote; `error` is raised when anything in it has changed since."""
    data = unsealed(read_json(path, error, what), about)
    if data is None:
        raise error(f"The {what} {path} is not as it was written.")
    return data


def _seal(data: Mapping[str, Any], about: Any) -> str:
    """The digest of an object and what it is about, however their keys are ordered."""
    return hashlib.sha256(json.dumps([essential(about), data], sort_keys=True).encode()).hexdigest()


def essential(settings: Any) -> Any:
    """Settings as JSON has them, less those that change nothing in what is found."""
    if isinstance(settings, Mapping):
        return {name: essential(value) for name, value in settings.items() if name not in BOUNDS}
    return [essential(value) for value in settings] if isinstance(settings, (list, tuple)) else settings


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], what: str, advice: str) -> None:
    """Raise RunError when something was started with other settings, weights or images than those it goes on with."""
    before, now = essential(before), essential(now)
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
