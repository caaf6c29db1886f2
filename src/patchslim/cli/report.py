"""`patchslim report`: a page of HTML about one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from patchslim.cli.common import AsJson, report
from patchslim.errors import RunError
from patchslim.files import read_json
from patchslim.plan import SlimPlan
from patchslim.report.page import pictures_in, write_page
from patchslim.runs import METRICS, PLAN, read_config

PAGE = "report.html"
EMPTY = "–"


def report_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN …", help="Run folders.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="F", help="The page [report.html in the first].")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a page about runs: MACs, patches per block, accuracy and speed where they were measured, pictures."""
    path = out or runs[0] / PAGE
    write_page([facts(run) for run in runs], path)
    report({"page": str(path), "runs": [str(run) for run in runs]}, as_json, str(path))


def facts(run: Path) -> dict[str, Any]:
    """What the page says of a run; top-1 and speed as they were measured last, if they were."""
    config, plan = read_config(run), SlimPlan.load(run / PLAN)
    metrics = read_json(run / METRICS, RunError, "run's metrics")
    measured = metrics | _timed(run)
    top1 = measured.get("top1") or ((metrics.get("recovery") or {}).get("val") or {}).get("after", {}).get("top1")
    saved, images = 1 - metrics["macs_ratio"], plan.provenance.get("images")
    return {
        "name": run.name,
        "model": plan.host.name,
        "method": plan.method,
        "macs": metrics["macs"],
        "macs_ratio": metrics["macs_ratio"],
        "top1": EMPTY if top1 is None else f"{top1:.2f}",
        "throughput": f"{measured['throughput']:,.0f}" if "throughput" in measured else EMPTY,
        "speedup": f"{measured['speedup']:.2f}" if "speedup" in measured else EMPTY,
        "patches_per_block": list(plan.counts),
        "sentence": f"{plan.host.name} with {saved:.0%} fewer MACs by {plan.method}, chosen by {images} images"
        + (", recovered." if "recovery" in config else "."),
        "pictures": pictures_in(run),
    }


def _timed(run: Path) -> dict[str, Any]:
    """The latest file of `patchslim bench`."""
    files = sorted((run / "bench").glob("*.json"), key=lambda path: path.stat().st_mtime)
    return read_json(files[-1], RunError, "measured speed") if files else {}
