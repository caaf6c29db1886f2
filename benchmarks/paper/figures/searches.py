"""What whole searches find: accuracy and MACs against the tolerance, and the patches that every block keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import nn

from benchmarks.inputs import Chosen, read_methods
from benchmarks.paper.figures.work import SEARCH_BATCH, Work
from benchmarks.rows import Row
from patchslim.errors import BudgetError
from patchslim.macs import count_macs, plan_macs
from patchslim.methods import Task, Uniform, fit, model_of
from patchslim.methods.baselines import uniform_counts
from patchslim.search import Target
from patchslim.search.cost import PAPERS_TOLERANCE
from patchslim.slimmed import plan_of

BLOCK, READOUT = (0.002, 0.005, 0.01, 0.02, 0.05), (0.01, 0.02, 0.05, 0.1, 0.2)
# ε of Algorithm 1 is the error of the next block, that of Taylor importance the error of what the head reads.
EPS = {"ps": BLOCK, "ps:tune_epochs=0": BLOCK, "drop": READOUT}
EVEN = ("ps:tune_epochs=0", "drop", "merge")


def measure_eps(work: Work, tolerances: Sequence[float]) -> None:
    """A row for every method and tolerance; one search's features and errors serve the next."""
    if work.images is None:
        return
    work.keep([work.host_row("eps")])
    for word, usual in EPS.items():
        (chosen,) = read_methods(word)
        task = Task.of(work.model, work.images, seed=work.seed, batch_size=SEARCH_BATCH)
        for tolerance in sorted(tolerances or usual):
            _search(work, "eps", chosen, task.at(Target(tolerance=tolerance)), {"tolerance": tolerance})


def measure_even(work: Work, ratio: float) -> None:
    """A row for every way to a MAC ratio. Uniform counts are a formula; all others take weights and images."""
    work.keep([work.host_row("even")])
    (uniform,) = read_methods("uniform")
    if work.images is None:
        counts, macs = uniform_at(work, ratio)
        known: dict[str, Any] = {"method": uniform.name, "target_macs": ratio, "patches_per_block": counts}
        work.keep([work.row("even", **known, macs=macs, macs_ratio=macs / work.macs)])
        return
    for chosen in read_methods(",".join(["uniform", *EVEN])):
        task = Task.of(work.model, work.images, Target(macs=ratio), seed=work.seed, batch_size=SEARCH_BATCH)
        _search(work, "even", chosen, task)
    (chosen,) = read_methods("ps")
    task = Task.of(work.model, work.images, Target(tolerance=PAPERS_TOLERANCE), seed=work.seed, batch_size=SEARCH_BATCH)
    _search(work, "even", chosen, task, {"tolerance": PAPERS_TOLERANCE})


def uniform_at(work: Work, ratio: float) -> tuple[list[int], int]:
    """The most patches per block, the same in all, within a ratio; and their MACs."""
    info, method = work.host.info, Uniform()

    def macs(n: int) -> int:
        return plan_macs(info, method.sketch(info, uniform_counts(info, n)))

    n = next((n for n in range(info.patches, 0, -1) if macs(n) <= ratio * work.macs), None)
    if n is None:
        raise BudgetError(f"Uniform pruning can't reach {ratio:g} of {info.name}'s MACs; give a larger --ratio.")
    return uniform_counts(info, n), macs(n)


def _search(work: Work, figure: str, chosen: Chosen, task: Task, point: dict[str, Any] | None = None) -> None:
    """A row of one search, unless it is there."""
    keys: dict[str, Any] = {
        "method": chosen.name,
        "settings": chosen.settings,
        "target_macs": task.target.macs,
        "point": point,
    }
    if work.done(work.row(figure, **keys)):
        return
    start = time.monotonic()
    found = fit(chosen.method, task)
    keys["search_seconds"] = round(time.monotonic() - start, 1)
    work.keep([_row(work, figure, keys, model_of(found, work.model))])


def _row(work: Work, figure: str, keys: dict[str, Any], slim: nn.Module) -> Row:
    macs, plan = count_macs(slim), plan_of(slim)
    counts = None if plan is None else list(plan.counts)
    known = {"macs": macs, "macs_ratio": macs / work.macs, "patches_per_block": counts}
    return work.row(figure, work.hits(slim) if work.scored else None, **keys | known)
