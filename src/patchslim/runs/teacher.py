"""The original network of a run: what a recovery learns from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from patchslim.errors import CheckpointError, RunError
from patchslim.hosts.checkpoint import put_checkpoint_, read_checkpoint
from patchslim.hosts.weights import load_weights_, weights_fingerprint
from patchslim.plan import SlimPlan
from patchslim.slim import load_host
from patchslim.slim.store import HOST_WEIGHTS, PLAN, read_config


def load_teacher(run: Path, given: Path | None = None) -> nn.Module:
    """The network that a run was made from, with weights from the file given, else from the run itself.

    RunError when the run has only other weights by now; CheckpointError when the file's are another network's.
    """
    config, host = read_config(run), load_host(run)
    kept = run / HOST_WEIGHTS
    path = given or (kept if kept.exists() else None)
    if path is None:
        if not _untouched(run, host, config):
            raise RunError(
                f"{run} has tuned weights only, and recovery learns from the original network; "
                "give its weights as a file with --teacher."
            )
        return host
    if given is None:
        load_weights_(host, path)
    else:
        put_checkpoint_(host, read_checkpoint(path), str(path))
    wanted = config.get("weights")
    if wanted is not None and weights_fingerprint(host) != wanted:
        raise CheckpointError(f"{path} does not hold the weights that {run} was made from; give those with --teacher.")
    return host


def _untouched(run: Path, host: nn.Module, config: Mapping[str, Any]) -> bool:
    """Whether a run's weights are still its host's."""
    if config.get("weights") is not None:
        return bool(weights_fingerprint(host) == config["weights"])
    settings = SlimPlan.load(run / PLAN).provenance.get("settings")
    tuned = settings.get("tune_epochs") if isinstance(settings, Mapping) else None
    return tuned == 0 and "recovery" not in config
