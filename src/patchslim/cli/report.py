"""`patchslim report`: a page of HTML about one run or several."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from patchslim.cli import options
from patchslim.cli.terminal import report
from patchslim.errors import RunError
from patchslim.files import checked, read_json

EMPTY = "–"


def report_runs(
    runs: Annotated[list[Path], Argument(metavar="RUN …", help="Run folders.")],
    out: Annotated[Path | None, Option(metavar="F", help="The page [report.html in the first].")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a page about runs: MACs, patches per block, accuracy and speed where they were measured, pictures."""
    from patchslim.report.page import write_page
    from patchslim.runs.manifest import add_made
    from patchslim.runs.store import PLAN

    if out is not None:
        options.check_ending(out, ".html", "A page")
    path, found = out or runs[0] / "report.html", [facts(run) for run in runs]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(found, path)
    for run in runs:
        add_made(run, [path], PLAN, of_weights=False)
    report({"page": str(path), "runs": [str(run) for run in runs]}, as_json, str(path))


def facts(run: Path) -> dict[str, Any]:
    """What the page says of a run; top-1 and speed as they were measured last, if they were."""
    from patchslim.plan import SlimPlan
    from patchslim.report.page import pictures_in
    from patchslim.runs.make import measure_plan
    from patchslim.runs.store import PLAN, load_host, read_config, read_metrics

    host = load_host(run)  # which looks whether the files are as they were written
    config, plan = read_config(run), SlimPlan.load(run / PLAN)
    metrics = read_metrics(run) | measure_plan(host, plan)
    top1 = metrics.get("top1")
    if "recovery" in metrics:  # only what was measured then still holds
        top1 = ((metrics["recovery"].get("val") or {}).get("after") or {}).get("top1")
    timed = sorted((run / "bench").glob("*.json"), key=lambda path: path.stat().st_mtime)
    speed = metrics | (_measured(run, timed[-1]) if timed else {})
    images = plan.provenance.get("images")
    chosen = "" if images is None else f", chosen by {images} images"
    recovered = ", recovered" if config.get("recovery", {}).get("changed") else ""
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


def _measured(run: Path, path: Path) -> dict[str, Any]:
    """What `bench` found, as it was written."""
    from patchslim.runs.manifest import check_made
    from patchslim.runs.schemas import Speed

    check_made(run, path)
    found = read_json(path, RunError, "measured speed")
    checked(Speed, found, RunError, f"The measured speed {path}")
    return found
