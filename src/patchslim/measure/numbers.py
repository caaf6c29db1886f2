"""A benchmark's row: what was timed, put into numbers that can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchslim.timing import Timed

BASELINES = {"baseline": "", "baseline_same_embedding": "_same_embedding"}  # and how their numbers' names end


def model_row(timed: Timed, size: int) -> dict[str, Any]:
    """A model's numbers in every mode, on batches of this size."""
    modes = {
        mode: {
            "throughput": timing.throughput(size),
            "seconds_per_batch": timing.seconds,
            "peak_memory": timed.prepared.ready[mode].peak_memory,
        }
        for mode, timing in timed.times.items()
    }
    return {"best": timed.best, "modes": modes, "failed": timed.prepared.failed}


def numbers(models: Mapping[str, Any], ideal: float) -> dict[str, Any]:
    """Each model's best mode, and what the slim model gains on both baselines."""
    found: dict[str, Any] = {"ideal_speedup": ideal}
    for name, model in models.items():
        start = "" if name == "slim" else f"{name}_"
        found |= {f"{start}mode": model["best"]}
        found |= {f"{start}{key}": value for key, value in model["modes"][model["best"]].items()}
    for name, end in BASELINES.items():
        speedup = found[f"{name}_seconds_per_batch"][1] / found["seconds_per_batch"][1]
        found |= {f"speedup{end}": speedup, f"share_of_ideal{end}": speedup / ideal}
    return found | _quantised_numbers(found, ideal) if "quantised" in models else found


def _quantised_numbers(found: Mapping[str, Any], ideal: float) -> dict[str, float]:
    """What slimming gains where both are quantised, what quantising adds to each, and both together."""
    names = ("", "baseline_", "baseline_same_embedding_", "quantised_", "baseline_quantised_")
    slim, host, same, both, coarse = (found[f"{name}seconds_per_batch"][1] for name in names)
    return {
        "speedup_quantised": coarse / both,
        "share_of_ideal_quantised": coarse / both / ideal,
        "quantised_over_slim": slim / both,
        "quantised_over_baseline": host / both,
        "baseline_quantised_over_same_embedding": same / coarse,
    }
