"""The original network of a run: what a recovery learns from."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from patchslim.errors import CheckpointError, RunError
from patchslim.hosts.checkpoint import put_checkpoint_, read_checkpoint
from patchslim.hosts.weights import load_weights_, weights_fingerprint
from patchslim.plan import HOST, SlimPlan
from patchslim.runs.store import HOST_WEIGHTS, PLAN, load_host, read_config


def load_teacher(run: Path, given: Path | None = None) -> nn.Module:
    """The network that a run was made from, with weights from the file given, else from the run itself.

    RunError when the run has only other weights by now; CheckpointError when the file's are another network's.
    """
    host, wanted = load_host(run), original_weights(run)
    kept = run / HOST_WEIGHTS
    path = given or (kept if kept.exists() else None)
    if path is None:
        if weights_fingerprint(host) != wanted:
            raise RunError(
                f"{run} has tuned weights only, and recovery learns from the original network; "
                "give its weights as a file with --teacher."
            )
        return host
    if given is None:
        load_weights_(host, path)
    else:
        put_checkpoint_(host, read_checkpoint(path), str(path))
    if wanted is not None and weights_fingerprint(host) != wanted:
        raise CheckpointError(f"{path} does not hold the weights that {run} was made from; give those with --teacher.")
    return host


def original_weights(run: Path) -> str | None:
    """The fingerprint of the weights that a run was made from: its plan, or the command that made it, says so."""
    found: str | None = SlimPlan.load(run / PLAN).provenance.get(HOST) or read_config(run).get("weights")
    return found
