"""Run folders: a slim model as plain files, and back. Nothing in them is pickled."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from patchslim.data.transform import transform_for
from patchslim.errors import RunError
from patchslim.files import read_json, write_json
from patchslim.hosts import rebuild_host
from patchslim.hosts.hf_open import is_hf_folder
from patchslim.hosts.weights import load_weights_, read_weights, write_weights
from patchslim.plan import SlimPlan
from patchslim.slim.assemble import apply, is_slim
from patchslim.slim.chooser import chooser_weights, is_chooser_key
from patchslim.slim.model import SlimModel
from patchslim.version import __version__

CONFIG, PLAN, WEIGHTS, METRICS = "config.json", "plan.json", "model.safetensors", "metrics.json"
PREDICTOR_WEIGHTS = "predictor.safetensors"  # of a run that predicts: not the host's, so not in its file
DISTANCE_WEIGHTS = "distance.safetensors"  # of a run that matches by distances: likewise
HOST_WEIGHTS = "host.safetensors"  # the original network's, once those of the run are others: the teacher
# What a run is made of, less its plan, which is written last.
FILES = (WEIGHTS, PREDICTOR_WEIGHTS, DISTANCE_WEIGHTS, HOST_WEIGHTS, CONFIG, METRICS)
SEARCH = "search"  # a search's memory; gone once the run is whole
RECOVERY = "recovery"  # a recovery's memory; gone once its result is in the run
RUN_VERSION = 1


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
    if slim.host_spec is None:
        raise RunError(
            "This model has parts that its constructor's settings don't describe, so it can't be saved as a run; "
            "keep its plan (plan.save) and its state dict instead."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_weights(folder / WEIGHTS, host_weights(slim))
        if chooser := chooser_weights(slim.state_dict()):
            write_weights(folder / str(_chooser_file(slim.plan)), chooser)
        head = {"format": "patchslim run", "version": RUN_VERSION, "host": slim.host_spec}
        write_json(folder / CONFIG, head | {"versions": versions()} | dict(config))
        write_json(folder / METRICS, metrics)
        slim.plan.save(folder / PLAN)
    except OSError as error:
        raise RunError(f"The run can't be written to {folder}: {error.strerror or error}.") from None


def host_weights(slim: nn.Module) -> dict[str, Tensor]:
    """A slim model's weights that have a place in its host: all but those that patches are chosen by."""
    return {name: tensor for name, tensor in slim.state_dict().items() if not is_chooser_key(name)}


def _chooser_file(plan: SlimPlan) -> str | None:
    """Where a run keeps what its patches are chosen by; None where the host's weights are all it needs."""
    if plan.predictor is not None:
        return PREDICTOR_WEIGHTS
    return DISTANCE_WEIGHTS if plan.distance is not None and plan.choosing else None


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config.json, of a version this patchslim reads."""
    if not folder.is_dir():
        raise RunError(f"There is no run folder at {folder}.")
    if is_hf_folder(folder):
        raise RunError(f"{folder} holds a Hugging Face model and no run; make one with `patchslim slim {folder} …`.")
    if not holds_run(folder):
        raise RunError(f"{folder} holds no run: it has no {CONFIG}; give a run folder.")
    if not (folder / PLAN).exists():
        raise RunError(f"The run in {folder} is not finished; go on with `patchslim slim … --out {folder} --resume`.")
    config = read_json(folder / CONFIG, RunError, "run's config")
    if config.get("format") != "patchslim run":
        raise RunError(f"{folder / CONFIG} does not belong to a patchslim run.")
    if config.get("version") != RUN_VERSION:
        raise RunError(
            f"{folder} is a run of version {config.get('version')}, this patchslim reads {RUN_VERSION}; upgrade it."
        )
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


def load(path: str | Path, device: str | torch.device = "cpu") -> SlimModel:
    """The slim model of a run folder, in eval mode."""
    host = load_host(path)
    plan = SlimPlan.load(Path(path) / PLAN)
    file = _chooser_file(plan)
    return apply(host, plan, None if file is None else read_weights(Path(path) / file)).to(device)
