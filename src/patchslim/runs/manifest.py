"""A run's manifest: size and SHA-256 of every file, so that nothing that has changed since is taken for the run.

Files are replaced together. New ones are written beside the old, then the manifest names them, and then they take
their places. A process killed before the manifest leaves the old run; killed after it, whoever reads the run next puts
the rest in place.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from patchslim.errors import RunError
from patchslim.files import (
    Digest,
    checked,
    digest,
    is_as,
    locked,
    read_json,
    remove_leftovers,
    write_bytes,
    write_json,
)

MANIFEST, VERSION = "manifest.json", 1
AS_WRITTEN, CHANGED, MISSING, UNKNOWN = "as written", "changed", "missing", "not of the run"
GONE = "gone"  # what was made from the run, and can be made again
NEXT = "next"  # ends the name of a file that waits for its place


def _below(name: str) -> str:
    """A path within the run and no other."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts or "\\" in name or "\0" in name:
        raise ValueError("a file lies in the run folder")
    return name


Name = Annotated[str, Field(max_length=1000), AfterValidator(_below)]


class Made(BaseModel):
    """A file made from the run, and the fingerprint of the weights it was made from; empty where it has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=0)
    sha256: str
    weights: str = ""

    @property
    def digest(self) -> Digest:
        """Of the file."""
        return Digest(self.size, self.sha256)


class Manifest(BaseModel):
    """`files` make the run: all of them are there as they were written. What was `made` from it may be gone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["patchslim manifest"] = "patchslim manifest"
    version: Literal[1] = 1
    weights: str  # the fingerprint of the slim model's
    files: dict[Name, Digest]
    made: dict[Name, Made] = Field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Put it in its place at once."""
        write_json(folder / MANIFEST, self.model_dump())


def read_manifest(folder: Path) -> Manifest:
    """A run's manifest; RunError says what to do where there is none."""
    path = folder / MANIFEST
    if not path.exists():
        raise RunError(
            f"The run in {folder} has no {MANIFEST}, so nobody can tell whether its files are as they were written; "
            f"take them as they are with `patchslim seal {folder}`."
        )
    data = read_json(path, RunError, "run's manifest")
    if isinstance(data.get("version"), int) and data["version"] > VERSION:
        raise RunError(f"{path} was written by a newer patchslim; upgrade this one.")
    return checked(Manifest, data, RunError, f"The run's manifest {path}")


def states(folder: Path, manifest: Manifest, known: Iterable[str]) -> dict[str, str]:
    """How each file of the run is; of the `known` names those that are there. What waits for its place is put there."""
    found = {}
    for name, wanted in manifest.files.items():
        _put_in_place(folder, name, wanted)
        found[name] = state_of(folder / name, wanted)
    others = (name for name in known if name not in manifest.files)
    return found | {name: UNKNOWN for name in others if os.path.lexists(folder / name)}


def state_of(path: Path, wanted: Digest) -> str:
    """How one file is."""
    if not os.path.lexists(path):
        return MISSING
    return AS_WRITTEN if is_as(path, wanted) else CHANGED


def check_files(folder: Path, needed: Iterable[str], known: Iterable[str]) -> Manifest:
    """The manifest of a run whose files are all as they were written; RunError names the first that is not."""
    while True:
        manifest = read_manifest(folder)
        found = states(folder, manifest, known)
        found = {name: found.get(name, UNKNOWN) for name in needed} | found
        wrong = next((name for name, state in found.items() if state != AS_WRITTEN), None)
        if wrong is None:
            return manifest
        if read_manifest(folder) == manifest:  # else another process has just replaced the files
            raise RunError(complaint(folder, wrong, found[wrong]))


def complaint(folder: Path, name: str, state: str) -> str:
    """What is wrong with a file of a run, and what to do."""
    remedy = f"restore it, or take the run as it is now with `patchslim seal {folder}`"
    words = {MISSING: "is missing", CHANGED: "is not as it was written", UNKNOWN: "is not named in its manifest"}
    return f"{folder / name} {words[state]}; {remedy}."


def put_files(folder: Path, contents: Mapping[str, bytes], weights: str, last: str) -> None:
    """Replace or add files of a run, all or none; the one named `last` takes its place last.

    What the manifest has of other files stays, unless there is no whole run yet.
    """
    if not (folder / last).exists():
        _put(folder, contents, Manifest(weights=weights, files={}), last)
        return
    with locked(folder / last):
        old = read_manifest(folder)
        for name, wanted in old.files.items():  # of a process that was killed
            _put_in_place(folder, name, wanted)
        _put(folder, contents, old.model_copy(update={"weights": weights}), last)


def _put(folder: Path, contents: Mapping[str, bytes], old: Manifest, last: str) -> None:
    for name in {*old.files, *contents, MANIFEST}:  # of processes that were killed
        for path in (folder / name, _waiting(folder, name)):
            remove_leftovers(path)
        _waiting(folder, name).unlink(missing_ok=True)
    digests = {name: Digest(len(data), sha256(data).hexdigest()) for name, data in contents.items()}
    others = [name for name in contents if not is_as(folder / name, digests[name])]
    new = Manifest(weights=old.weights, files=old.files | digests, made=old.made)
    try:
        for name in others:
            write_bytes(_waiting(folder, name), contents[name])
        new.write(folder)
    except OSError:  # a full disk; an interruption may come after the manifest, so it removes nothing
        for name in others:
            _waiting(folder, name).unlink(missing_ok=True)
        raise
    for name in sorted(others, key=lambda name: name == last):
        _put_in_place(folder, name, digests[name])


def _waiting(folder: Path, name: str) -> Path:
    """Where a file waits for its place."""
    return folder / f".{name}.{NEXT}"


def _put_in_place(folder: Path, name: str, wanted: Digest) -> None:
    """Give a file that waits its place, if it is the one that the manifest names."""
    waiting = _waiting(folder, name)
    if not waiting.exists() or not is_as(waiting, wanted):
        return
    try:
        waiting.replace(folder / name)
    except FileNotFoundError:  # another process did
        pass
    except OSError as error:
        raise RunError(
            f"A change of {folder} was cut short and can't be completed ({error.strerror}); "
            "make the folder writable and go on."
        ) from None


def add_made(folder: Path, paths: Iterable[Path], last: str, of_weights: bool = True) -> None:
    """Note files that were made from a run, if they lie in its folder; `of_weights`: other weights make others."""
    inside = {path.resolve() for path in paths}
    names = {path: path.relative_to(folder.resolve()).as_posix() for path in inside if _within(path, folder)}
    if not names:
        return
    with locked(folder / last):
        old = read_manifest(folder)
        weights = old.weights if of_weights else ""
        made = {name: _made(path, weights) for path, name in names.items()}
        Manifest(weights=old.weights, files=old.files, made=old.made | made).write(folder)


def _within(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder.resolve())


def _made(path: Path, weights: str) -> Made:
    found = digest(path)
    return Made(size=found.size, sha256=found.sha256, weights=weights)


def seal_files(folder: Path, names: Sequence[str], weights: str) -> Manifest:
    """Take a run's files as they are now; of what was made from it, what is still there."""
    try:
        old = read_manifest(folder).made
    except RunError:
        old = {}
    made = {name: _made(folder / name, own.weights) for name, own in old.items() if (folder / name).is_file()}
    manifest = Manifest(weights=weights, files={name: digest(folder / name) for name in names}, made=made)
    manifest.write(folder)
    return manifest


def made_states(folder: Path, manifest: Manifest) -> dict[str, str]:
    """How the files are that were made from a run. They may be gone: they can be made again."""
    found = {name: state_of(folder / name, own.digest) for name, own in manifest.made.items()}
    return {name: GONE if state == MISSING else state for name, state in found.items()}


def stale(folder: Path, manifest: Manifest) -> list[str]:
    """What was made from other weights than the run has now, and is still there."""
    of_others = {name for name, own in manifest.made.items() if own.weights not in ("", manifest.weights)}
    return sorted(name for name in of_others if (folder / name).exists())


def check_made(folder: Path, path: Path) -> None:
    """Raise RunError where a file that was made from the run is not as it was written."""
    name = path.relative_to(folder).as_posix()
    own = read_manifest(folder).made.get(name)
    if own is not None and state_of(path, own.digest) != AS_WRITTEN:
        raise RunError(f"{path} is not as it was written; restore it, or remove it and make it again.")
