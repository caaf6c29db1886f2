"""What whole searches find: accuracy and MACs against the tolerance, and the patches that every block keeps."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

import patchslim as ps
from figures.rows import Row, Rows
from figures.work import Work
from patchslim.errors import BudgetError
from patchslim.macs import macs_of_counts
from patchslim.peers.fit import first_fitting
from patchslim.peers.hits import to_hex
from patchslim.peers.method import Cell, Job, PeerConfig
from patchslim.peers.uniform import Uniform, counts_of
from patchslim.search.run import DEFAULT_TOLERANCE, Session

EPS_KEY = ("mode", "tolerance")
EVEN_KEY = ("mode", "target_macs")
BLOCK, READOUT = (0.002, 0.005, 0.01, 0.02, 0.05), (0.01, 0.02, 0.05, 0.1, 0.2)
# ε of Algorithm 1 is the error of the next block, that of the effect score the error of what the head reads.
EPS_MODES: dict[str, tuple[dict[str, Any], Sequence[float]]] = {
    "impact, blocks tuned": ({"score": "impact", "tune_epochs": 3}, BLOCK),
    "impact": ({"score": "impact", "tune_epochs": 0}, BLOCK),
    "effect": ({"removed": "drop"}, READOUT),
}
UNIFORM = "uniform"
EVEN_MODES: dict[str, dict[str, Any]] = {
    f"impact, blocks tuned, ε = {DEFAULT_TOLERANCE:g}": {"score": "impact", "tolerance": DEFAULT_TOLERANCE},
    "impact": {"score": "impact", "tune_epochs": 0},
    "effect": {"removed": "drop"},
    "matched merge": {"select": "matched"},
}


def measure_eps(work: Work, rows: Rows, tolerances: Sequence[float] | None) -> None:
    """A row for every mode and tolerance; one search's features and errors serve the next."""
    if work.images is None:
        return
    for mode, (settings, usual) in EPS_MODES.items():
        left = [
            tolerance
            for tolerance in sorted(tolerances or usual)
            if not rows.done({"mode": mode, "tolerance": tolerance})
        ]
        if not left:
            continue
        config = ps.SearchConfig(seed=work.seed, tolerance=left[0], **settings)
        session = Session(work.model, work.images, config)
        for tolerance in left:
            start = time.monotonic()
            plan, tuned = session.find(replace(config, tolerance=tolerance))
            about = {"mode": mode, "tolerance": tolerance, "seconds": round(time.monotonic() - start, 1)}
            _keep(rows, about | _row(work, ps.apply(work.model, plan, tuned), list(plan.counts)))


def measure_even(work: Work, rows: Rows, ratio: float) -> None:
    """A row for every way to a MAC ratio. Uniform counts are a formula; all others take weights and images."""
    if not rows.done({"mode": UNIFORM, "target_macs": ratio}):
        _keep(rows, {"mode": UNIFORM, "target_macs": ratio} | _uniform(work, ratio))
    for mode, settings in EVEN_MODES.items():
        if work.images is None or rows.done({"mode": mode, "target_macs": ratio}):
            continue
        limit: dict[str, Any] = {} if "tolerance" in settings else {"target_macs": ratio}
        start = time.monotonic()
        plan, tuned = ps.search(work.model, work.images, ps.SearchConfig(seed=work.seed, **limit, **settings))
        about = {"mode": mode, "target_macs": ratio, "seconds": round(time.monotonic() - start, 1)}
        _keep(rows, about | _row(work, ps.apply(work.model, plan, tuned), list(plan.counts)))


def _uniform(work: Work, ratio: float) -> Row:
    """The same number of patches in every block, those of the highest impact."""
    info = work.host.info
    fits = first_fitting(
        range(info.patches, 0, -1), lambda n: macs_of_counts(info, counts_of(info, n)), int(ratio * work.macs)
    )
    if fits is None:
        raise BudgetError(f"Uniform pruning can't reach {ratio:g} of {info.name}'s MACs; give a larger --ratio.")
    counts = counts_of(info, fits)
    if work.images is None:
        return {"patches_per_block": counts, "macs_ratio": macs_of_counts(info, counts) / work.macs, "top1": None}
    cell = Uniform().build(Job(work.host, work.images, PeerConfig(seed=work.seed)), ratio)
    assert isinstance(cell, Cell)
    return _row(work, cell.module, counts)


def _row(work: Work, slim: nn.Module, counts: Sequence[int]) -> Row:
    row: Row = {"patches_per_block": counts, "macs_ratio": ps.count_macs(slim) / work.macs, "top1": None}
    if not work.scored:
        return row
    right = work.hits(slim)
    return row | {"top1": float(right.double().mean() * 100), "right": to_hex(right)}


def _keep(rows: Rows, row: Row) -> None:
    rows.add(row)
    print(json.dumps({name: value for name, value in row.items() if name != "right"}), flush=True)
