"""`patchslim seal`: take a run's files as they are now."""

from patchslim.cli import options
from patchslim.cli.terminal import report


def seal_run(run: options.RunFolder, as_json: options.AsJson = False) -> None:
    """Take the files of a run, or of a sweep's runs, as they are now, if they make a model. For edits by hand."""
    from patchslim.runs.make import runs_in
    from patchslim.runs.store import seal

    found = {folder: seal(folder) for folder in runs_in(run)}
    results = [{"run": str(folder), "files": names} for folder, names in found.items()]
    text = "\n".join(f"{folder}: {', '.join(names)}" for folder, names in found.items())
    report(results[0] if run in found else {"sweep": str(run), "runs": results}, as_json, text)
