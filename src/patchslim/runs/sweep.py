"""The folder of a sweep: it holds a run for each MAC ratio, and is none itself."""

from pathlib import Path

from patchslim.errors import RunError

PLAN = "plan.json"  # written last into a run, so that a folder with a plan is a whole run
BEGIN = "macs-"  # of the names of the runs' folders


def run_name(ratio: float) -> str:
    """The folder of one ratio's run."""
    return f"{BEGIN}{ratio:g}"


def swept(folder: Path) -> list[Path]:
    """The finished runs of a sweep's folder; none where the folder is a run itself."""
    plans = [] if (folder / PLAN).exists() else folder.glob(f"{BEGIN}*/{PLAN}")
    return sorted(plan.parent for plan in plans)


def check_one_run(folder: Path) -> None:
    """Raise RunError for a folder that is no run and holds some, as those of a sweep or of a demo; name them."""
    if not (folder / PLAN).exists() and (runs := sorted(folder.glob(f"*/{PLAN}"))):
        names = ", ".join(str(run.parent) for run in runs)
        raise RunError(f"{folder} holds several runs; give one of them: {names}.")
