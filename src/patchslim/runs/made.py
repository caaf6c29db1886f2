"""What was made from a run: which of it is of weights that the run no longer has."""

from contextlib import suppress
from pathlib import Path

from patchslim.errors import PatchslimError
from patchslim.exports import FORMATS, read_metadata
from patchslim.runs.manifest import read_manifest, stale

SUFFIXES = {each.suffix for each in FORMATS.values()}


def stale_files(folder: Path) -> list[str]:
    """Exported files and measured speeds in a run's folder that are of other weights than the run has now.

    The manifest tells of those that commands made; others are asked themselves, if their packages are there.
    """
    manifest = read_manifest(folder)
    found = stale(folder, manifest)
    others = (path for path in folder.iterdir() if path.suffix in SUFFIXES and path.name not in manifest.made)
    for path in others:
        with suppress(PatchslimError):
            if read_metadata(path).get("weights", manifest.weights) != manifest.weights:
                found.append(path.name)
    return sorted(found)
