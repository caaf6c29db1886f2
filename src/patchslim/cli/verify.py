"""`patchslim verify`: whether a run's files are as they were written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchslim.cli import options
from patchslim.cli.terminal import report
from patchslim.errors import RunError

OTHERS = "of other weights"  # what was made before the run's were replaced


def verify(run: options.RunFolder, as_json: options.AsJson = False) -> None:
    """Say which files of a run, or of each run of a sweep, are as they were written."""
    from patchslim.runs.make import runs_in
    from patchslim.runs.manifest import AS_WRITTEN, GONE, complaint

    results = [verified(folder) for folder in runs_in(run)]
    text = "\n".join(line for result in results for line in lines(result))
    report(results[0] if results[0]["run"] == str(run) else {"sweep": str(run), "runs": results}, as_json, text)
    for result in results:
        for name, state in result["files"].items():
            if state not in (AS_WRITTEN, GONE):
                raise RunError(complaint(Path(result["run"]), name, state))


def verified(folder: Path) -> dict[str, Any]:
    """One run's files: how each is, and which of those made from it are stale."""
    from patchslim.runs.made import stale_files
    from patchslim.runs.manifest import AS_WRITTEN, GONE
    from patchslim.runs.store import file_states

    files = file_states(folder)
    whole = all(state in (AS_WRITTEN, GONE) for state in files.values())
    return {"run": str(folder), "whole": whole, "files": files, "stale": stale_files(folder)}


def lines(result: Mapping[str, Any]) -> list[str]:
    """A line for each file."""
    from patchslim.runs.manifest import AS_WRITTEN

    stale = dict.fromkeys(result["stale"], OTHERS)
    told = {name: state for name, state in result["files"].items() if name not in stale or state != AS_WRITTEN}
    return [f"{Path(result['run']) / name}: {state}" for name, state in sorted((stale | told).items())]
