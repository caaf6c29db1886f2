"""Run folders: a slim model as plain files, and back. Nothing in them is pickled."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from patchslim.data.transform import transform_for
from patchslim.errors import CheckpointError, RunError, UnsupportedModel
from patchslim.files import read_json, write_json
from patchslim.hosts import rebuild_host, spec_of
from patchslim.hosts.checkpoint import put_checkpoint_, read_checkpoint
from patchslim.hosts.hf_open import is_hf_folder
from patchslim.hosts.weights import load_weights_, read_weights, weights_fingerprint, write_weights
from patchslim.plan import HOST, SlimPlan
from patchslim.slimmed import apply, is_slim, own_keys
from patchslim.version import __version__

CONFIG, PLAN, WEIGHTS, METRICS = "config.json", "plan.json", "model.safetensors", "metrics.json"
STEPS_WEIGHTS = "steps.safetensors"  # what the steps own, such as distances: not the host's, so not in its file
HOST_WEIGHTS = "host.safetensors"  # the original network's, once those of the run are others: the teacher
# What a run is made of, less its plan, which is written last.
FILES = (WEIGHTS, STEPS_WEIGHTS, HOST_WEIGHTS, CONFIG, METRICS)
SEARCH = "search"  # a search's memory; gone once the run is whole
RECOVERY = "recovery"  # a recovery's memory; gone once its result is in the run
RUN_VERSION = 2


def versions() -> dict[str, str]:
    """What a run was made with."""
    return {
        "patchslim": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
    }


def holds_run(path: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return any((path / name).exists() for name in (CONFIG, PLAN, WEIGHTS, SEARCH))


def runs_in(folder: Path) -> list[str]:
    """Runs that lie in a folder, such as those of a sweep."""
    return sorted(str(plan.parent) for plan in folder.glob(f"*/{PLAN}"))


def save(
    slim: nn.Module,
    path: str | Path,
    *,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> None:
    """Write a run folder for a slim model; RunError if the folder holds another run."""
    folder = Path(path)
    if not is_slim(slim):
        raise RunError("Only a slim model can be saved as a run; make one with patchslim.apply or patchslim.slim.")
    if (folder / PLAN).exists():
        raise RunError(f"{folder} already holds a run; choose another folder or remove it.")
    write_run(slim, folder, config or {}, metrics or {})


def write_run(slim: Any, folder: Path, config: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """Write all files of a run, the plan last: a folder with a plan is a whole run."""
    try:
        spec = spec_of(slim)
    except UnsupportedModel:
        raise RunError(
            "This model has parts that its constructor's settings don't describe, so it can't be saved as a run; "
            "keep its plan (plan.save) and its state dict instead."
        ) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_weights(slim, folder)
        head = {"format": "patchslim run", "version": RUN_VERSION, "host": spec}
        write_json(folder / CONFIG, head | {"versions": versions()} | dict(config))
        write_json(folder / METRICS, metrics)
        slim.plan.save(folder / PLAN)
    except OSError as error:
        raise RunError(f"The run can't be written to {folder}: {error.strerror or error}.") from None


def put_result(
    folder: Path, slim: nn.Module, teacher: nn.Module, report: Mapping[str, Any], started: Mapping[str, Any]
) -> None:
    """A recovery's result in the run's place. If this is interrupted, the recovery's own folder still has it."""
    if not (folder / HOST_WEIGHTS).exists():
        write_weights(folder / HOST_WEIGHTS, teacher.state_dict())
    _write_weights(slim, folder)
    metrics = read_json(folder / METRICS, RunError, "run's metrics")
    write_json(folder / METRICS, metrics | {RECOVERY: dict(report)})
    config = read_json(folder / CONFIG, RunError, "run's config")
    write_json(folder / CONFIG, config | {RECOVERY: dict(started) | {"versions": versions()}})


def _write_weights(slim: nn.Module, folder: Path) -> None:
    """What steps own is written first: the host's weights tell a resumed recovery what it went on from."""
    weights, own = slim.state_dict(), own_keys(slim)
    if own:
        write_weights(folder / STEPS_WEIGHTS, {name: weights[name] for name in sorted(own)})
    write_weights(folder / WEIGHTS, {name: tensor for name, tensor in weights.items() if name not in own})


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config.json, of a version this patchslim reads."""
    if not folder.is_dir():
        raise RunError(f"There is no run folder at {folder}.")
    if is_hf_folder(folder):
        raise RunError(f"{folder} holds a Hugging Face model and no run; make one with `patchslim slim {folder} …`.")
    if not holds_run(folder):
        if within := runs_in(folder):
            raise RunError(f"{folder} holds several runs; give one of them: {', '.join(within)}.")
        raise RunError(f"{folder} holds no run: it has no {CONFIG}; give a run folder.")
    if not (folder / PLAN).exists():
        raise RunError(f"The run in {folder} is not finished; go on with `patchslim slim … --out {folder} --resume`.")
    config = read_json(folder / CONFIG, RunError, "run's config")
    if config.get("format") != "patchslim run":
        raise RunError(f"{folder / CONFIG} does not belong to a patchslim run.")
    version = config.get("version")
    if version != RUN_VERSION:
        newer = isinstance(version, int) and version > RUN_VERSION
        what = "upgrade patchslim" if newer else "slim the model again"
        raise RunError(f"{folder} is a run of version {version}, this patchslim reads {RUN_VERSION}; {what}.")
    return config


def load_host(path: str | Path) -> nn.Module:
    """The unslimmed host of a run, with the run's weights, in eval mode."""
    folder = Path(path)
    config = read_config(folder)
    host = rebuild_host(config.get("host", {}))
    try:
        transform_for(host)
    except Exception as error:
        raise RunError(f"The run's {CONFIG} does not describe how images are prepared: {error!r}.") from None
    load_weights_(host, folder / WEIGHTS)
    return host.eval()


def load(path: str | Path, device: str | torch.device = "cpu") -> nn.Module:
    """The slim model of a run folder, in eval mode."""
    steps = Path(path) / STEPS_WEIGHTS
    with torch.device("cpu"):  # wherever else new tensors are made
        host, plan = load_host(path), SlimPlan.load(Path(path) / PLAN)
        slim = apply(host, plan, read_weights(steps) if steps.exists() else None)
    return slim.to(device)


def load_teacher(run: Path, given: Path | None = None) -> nn.Module:
    """The network that a run was made from, with weights from the file given, else from the run itself.

    RunError when the run has only other weights by now; CheckpointError when the file's are another network's.
    """
    host, kept = load_host(run), run / HOST_WEIGHTS
    # The plan, or the command that made the run, says which weights it was made from.
    wanted = SlimPlan.load(run / PLAN).provenance.get(HOST) or read_config(run).get("weights")
    if given is not None:
        put_checkpoint_(host, read_checkpoint(given), str(given))
    elif kept.exists():
        load_weights_(host, kept)
    same = weights_fingerprint(host) == wanted
    if not (same or given or kept.exists()):
        raise RunError(
            f"{run} has tuned weights only, and recovery learns from the original network; "
            "give its weights as a file with --teacher."
        )
    if not same and wanted is not None:
        path = given or kept
        raise CheckpointError(f"{path} does not hold the weights that {run} was made from; give those with --teacher.")
    return host
