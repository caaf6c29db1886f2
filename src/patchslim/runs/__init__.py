"""Run folders from the first command to the last: making one, recovering one, going on with either."""

from patchslim.folder import SOURCE, STARTED
from patchslim.runs.make import check_runs_folder, make_runs, measure_plan, run_name
from patchslim.runs.recover import recover_run
from patchslim.runs.request import Request, check_request
from patchslim.runs.store import (
    CONFIG,
    METRICS,
    PLAN,
    SEARCH,
    holds_run,
    load,
    load_host,
    read_config,
    save,
)

__all__ = [
    "CONFIG",
    "METRICS",
    "PLAN",
    "SEARCH",
    "SOURCE",
    "STARTED",
    "Request",
    "check_request",
    "check_runs_folder",
    "holds_run",
    "load",
    "load_host",
    "make_runs",
    "measure_plan",
    "read_config",
    "recover_run",
    "run_name",
    "save",
]
