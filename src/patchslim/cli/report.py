"""`patchslim report`: a page of HTML about one run or several."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from patchslim.cli import options
from patchslim.cli.terminal import report
from patchslim.errors import RunError
from patchslim.files import read_json

EMPTY = "–"


def report_runs(
    runs: Annotated[list[Path], Argument(metavar="RUN …", help="Run folders.")],
    out: Annotated[Path | None, Option(metavar="F", help="The page [report.html in the first].")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a page about runs: MACs, patches per block, accuracy and speed where they were measured, pictures."""
    from patchslim.report.page import write_page

    path, found = out or runs[0] / "report.html", [facts(run) for run in runs]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(found, path)
    report({"page": str(path), "runs": [str(run) for run in runs]}, as_json, str(path))


def facts(run: Path) -> dict[str, Any]:
    """What the page says of a run; top-1 and speed as they were measured last, if they were."""
    from patchslim.plan import SlimPlan
    from patchslim.report.page import pictures_in
    from patchslim.runs.make import measure_plan
    from patchslim.runs.store import METRICS, PLAN, load_host, read_config

    config, plan = read_config(run), SlimPlan.load(run / PLAN)
    metrics = read_json(run / METRICS, RunError, "run's metrics") | measure_plan(load_host(run), plan)
    top1 = metrics.get("top1")
    if "recovery" in metrics:  # only what was measured then still holds
        top1 = ((metrics["recovery"].get("val") or {}).get("after") or {}).get("top1")
    timed = sorted((run / "bench").glob("*.json"), key=lambda path: path.stat().st_mtime)
    speed = metrics | (read_json(timed[-1], RunError, "measured speed") if timed else {})
    images = plan.provenance.get("images")
    chosen = "" if images is None else f", chosen by {images} images"
    recovered = ", recovered" if "recovery" in config else ""
    return {
        "name": run.name,
        "model": plan.host.name,
        "method": plan.method,
        "macs": metrics["macs"],
        "macs_ratio": metrics["macs_ratio"],
        "top1": EMPTY if top1 is None else f"{top1:.2f}",
        "throughput": f"{speed['throughput']:,.0f}" if "throughput" in speed else EMPTY,
        "speedup": f"{speed['speedup']:.2f}" if "speedup" in speed else EMPTY,
        "patches_per_block": list(plan.counts),
        "sentence": f"{plan.host.name} with {1 - metrics['macs_ratio']:.0%} fewer MACs by {plan.method or 'hand'}"
        f"{chosen}{recovered}.",
        "pictures": pictures_in(run),
    }
