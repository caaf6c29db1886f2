"""Run folders from the first command to the last: making one, recovering one, going on with either."""

from patchslim.runs.folder import SOURCE, STARTED, check_folder
from patchslim.runs.make import make_run, measure_plan
from patchslim.runs.recover import recover_run
from patchslim.runs.request import Request, check_request
from patchslim.runs.sweep import check_sweep_folder, make_sweep, run_name

__all__ = [
    "SOURCE",
    "STARTED",
    "Request",
    "check_folder",
    "check_request",
    "check_sweep_folder",
    "make_run",
    "make_sweep",
    "measure_plan",
    "recover_run",
    "run_name",
]
