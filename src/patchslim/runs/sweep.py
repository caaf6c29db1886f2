"""Runs for several MAC ratios out of one search, each in a folder of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.data import ImageSource
from patchslim.errors import RunError
from patchslim.files import write_json
from patchslim.runs.folder import check_folder, searching
from patchslim.runs.make import finished, write_found
from patchslim.search import SearchConfig
from patchslim.search.run import Session
from patchslim.search.topdown import Listener
from patchslim.slim.store import PLAN, SEARCH

SWEEP = "sweep.json"  # the runs of a finished sweep, and their metrics


def run_name(ratio: float) -> str:
    """The folder of one ratio's run."""
    return f"macs-{ratio:g}"


def check_sweep_folder(folder: Path, resume: bool) -> None:
    """Raise RunError unless a sweep may be written, or gone on with, in this folder."""
    if not (folder / SWEEP).exists():
        check_folder(folder, resume)
    elif not resume:
        raise RunError(f"{folder} already holds a sweep; go on with --resume, or choose another folder with --out.")


def make_sweep(
    network: nn.Module,
    source: ImageSource,
    config: SearchConfig,
    ratios: Sequence[float],
    folder: Path,
    started: Mapping[str, Any],
    listen: Listener = lambda event: None,
) -> dict[float, dict[str, Any]]:
    """A run for every ratio, under `macs-RATIO`; returns their metrics by ratio. Finished ones are left alone."""
    metrics: dict[float, dict[str, Any]] = {}
    with searching(folder, started, listen) as told:
        session = Session(network, source, config, checkpoint=folder / SEARCH, listen=told)
        for ratio in sorted(ratios, reverse=True):
            own = replace(config, tolerance=None, target_macs=ratio)
            run, about = folder / run_name(ratio), dict(started) | {"settings": own.as_dict()}
            if (run / PLAN).exists():
                metrics[ratio] = finished(run, about)
                continue
            start = time.monotonic()
            plan, tuned = session.find(own)
            known = {"seconds": round(time.monotonic() - start, 1), "skipped_images": source.skipped}
            metrics[ratio] = write_found(network, plan, tuned, run, about, known)
        write_json(folder / SWEEP, {"runs": {run_name(ratio): found for ratio, found in metrics.items()}})
    return metrics
