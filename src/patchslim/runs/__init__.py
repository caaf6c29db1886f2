"""Run folders from the first command to the last: making one, recovering one, going on with either."""

from patchslim.runs.folder import SOURCE, STARTED, check_folder
from patchslim.runs.make import make_run, measure_plan
from patchslim.runs.recover import recover_run
from patchslim.runs.request import Request, check_request

__all__ = [
    "SOURCE",
    "STARTED",
    "Request",
    "check_folder",
    "check_request",
    "make_run",
    "measure_plan",
    "recover_run",
]
