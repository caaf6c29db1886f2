"""Run folders: a slim model as plain files, and back. Nothing in them is pickled."""

import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from patchslim.data.transform import transform_for
from patchslim.errors import CheckpointError, DataError, RunError
from patchslim.files import checked, json_text, locked, read_json
from patchslim.hosts import rebuild_host, unwrapped
from patchslim.hosts.checkpoint import put_checkpoint_, read_checkpoint
from patchslim.hosts.hf_open import is_hf_folder
from patchslim.hosts.weights import (
    cast_,
    check_weights,
    load_weights_,
    read_weights,
    slots_in,
    slots_of,
    weights_bytes,
    weights_fingerprint,
)
from patchslim.plan import HOST, SlimPlan
from patchslim.runs import sweep
from patchslim.runs.manifest import (
    MANIFEST,
    UNKNOWN,
    Manifest,
    check_files,
    made_states,
    put_files,
    read_manifest,
    seal_files,
    states,
)
from patchslim.runs.paper import check_steps, described, on_paper
from patchslim.runs.schemas import FORMAT, RUN_VERSION, Config, Metrics
from patchslim.slimmed import apply, is_slim, own_keys
from patchslim.slimmed.assemble import fingerprint
from patchslim.version import __version__

CONFIG, PLAN, WEIGHTS, METRICS = "config.json", sweep.PLAN, "model.safetensors", "metrics.json"
STEPS_WEIGHTS = "steps.safetensors"  # what the steps own, such as distances: not the host's, so not in its file
HOST_WEIGHTS = "host.safetensors"  # the original network's, once those of the run are others: the teacher
# What a run is made of, less its plan, which is written last; and what no run is without.
FILES = (WEIGHTS, STEPS_WEIGHTS, HOST_WEIGHTS, CONFIG, METRICS)
NEEDED = (CONFIG, PLAN, WEIGHTS, METRICS)
SEARCH = "search"  # a search's memory; gone once the run is whole
RECOVERY = "recovery"  # a recovery's memory; gone once its result is in the run


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
    """Write a run folder for a slim model; RunError if the folder holds another run, or no run can hold the model."""
    folder, slim = Path(path), unwrapped(slim)
    if not is_slim(slim):
        raise RunError("Only a slim model can be saved as a run; make one with patchslim.apply or patchslim.slim.")
    if (folder / PLAN).exists():
        raise RunError(f"{folder} already holds a run; choose another folder or remove it.")
    write_run(slim, folder, config or {}, metrics or {})


def write_run(
    slim: nn.Module,
    folder: Path,
    config: Mapping[str, Any],
    metrics: Mapping[str, Any],
    teacher: nn.Module | None = None,
) -> None:
    """Write all files of a run, the plan last: a folder with a plan is a whole run.

    `teacher` is the network it was made from, where its weights are others by now. Nothing is written unless `load`
    will give the same model.
    """
    weights = slim.state_dict()
    spec, plan = described(slim, weights)
    head = {"format": FORMAT, "version": RUN_VERSION, "host": spec, "versions": versions()}
    checked(Metrics, dict(metrics), RunError, "What is known of this model")
    texts = {CONFIG: dict(config) | head, METRICS: dict(metrics)}
    try:
        contents = {name: json_text(data).encode() for name, data in texts.items()}
    except (TypeError, ValueError) as error:
        raise RunError(f"What is to be kept beside the model can't be written as JSON: {error}.") from None
    contents |= _tensors(slim, weights) | {PLAN: plan.to_json().encode()}
    if teacher is not None:
        contents[HOST_WEIGHTS] = weights_bytes(teacher.state_dict())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if name not in contents:
                (folder / name).unlink(missing_ok=True)  # of a run that was never finished
        put_files(folder, contents, fingerprint(weights), PLAN)
    except OSError as error:
        raise RunError(f"The run can't be written to {folder}: {error.strerror or error}.") from None


def put_result(
    folder: Path, slim: nn.Module, teacher: nn.Module, report: Mapping[str, Any], started: Mapping[str, Any]
) -> None:
    """A recovery's result in the run's place, all of it or nothing. The recovery's own folder has it until then."""
    metrics = read_json(folder / METRICS, RunError, "run's metrics") | {RECOVERY: dict(report)}
    config = read_json(folder / CONFIG, RunError, "run's config")
    before = config.get(RECOVERY, {}).get("changed", False)
    config[RECOVERY] = dict(started) | {"changed": bool(report["changed"] or before), "versions": versions()}
    contents = {name: json_text(data).encode() for name, data in {METRICS: metrics, CONFIG: config}.items()}
    weights = slim.state_dict()
    if report["changed"]:
        contents |= _tensors(slim, weights)
        if not (folder / HOST_WEIGHTS).exists():
            contents[HOST_WEIGHTS] = weights_bytes(teacher.state_dict())
    put_files(folder, contents, fingerprint(weights), PLAN)


def put_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Other metrics in a run's place."""
    put_files(folder, {METRICS: json_text(metrics).encode()}, read_manifest(folder).weights, PLAN)


def _tensors(slim: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, bytes]:
    """The files of weights: the host's, and what the steps own, if they own anything."""
    own = own_keys(slim)
    files = {WEIGHTS: {name: tensor for name, tensor in weights.items() if name not in own}}
    if own:
        files[STEPS_WEIGHTS] = {name: weights[name] for name in sorted(own)}
    return {name: weights_bytes(tensors) for name, tensors in files.items()}


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config.json, of a version this patchslim reads. Whether its files have changed is not looked at."""
    find_run(folder)
    config = read_json(folder / CONFIG, RunError, "run's config")
    if config.get("format") != FORMAT:
        raise RunError(f"{folder / CONFIG} does not belong to a patchslim run.")
    _check_version(folder, config)
    checked(Config, config, RunError, f"The run's config {folder / CONFIG}")
    return config


def find_run(folder: Path) -> None:
    """Raise RunError unless there is a finished run in a folder."""
    if not folder.is_dir():
        raise RunError(f"There is no run folder at {folder}.")
    if is_hf_folder(folder):
        raise RunError(f"{folder} holds a Hugging Face model and no run; make one with `patchslim slim {folder} …`.")
    sweep.check_one_run(folder)
    if not holds_run(folder):
        raise RunError(f"{folder} holds no run: it has no {CONFIG}; give a run folder.")
    if not (folder / PLAN).exists():
        raise RunError(f"The run in {folder} is not finished; go on with `patchslim slim … --out {folder} --resume`.")


def _check_version(folder: Path, config: Mapping[str, Any]) -> None:
    version = config.get("version")
    if version != RUN_VERSION:
        newer = isinstance(version, int) and version > RUN_VERSION
        what = "upgrade patchslim" if newer else "slim the model again"
        raise RunError(f"{folder} is a run of version {version}, this patchslim reads {RUN_VERSION}; {what}.")


def read_metrics(folder: Path) -> dict[str, Any]:
    """A run's metrics."""
    metrics = read_json(folder / METRICS, RunError, "run's metrics")
    checked(Metrics, metrics, RunError, f"The run's metrics {folder / METRICS}")
    return metrics


def check_run(folder: Path) -> Manifest:
    """The manifest of a run whose files are all as they were written; RunError names one that is not.

    Everything that reads a run calls this first.
    """
    _check_age(folder)
    return check_files(folder, NEEDED, (*FILES, PLAN))


def _check_age(folder: Path) -> None:
    """Raise RunError where there is no run, and for one of an older version, which has no manifest."""
    find_run(folder)
    if not (folder / MANIFEST).exists():
        read_config(folder)


def file_states(folder: Path) -> dict[str, str]:
    """How each file of a run is, and each that was made from it and is still there."""
    _check_age(folder)
    manifest = read_manifest(folder)
    own = states(folder, manifest, (*FILES, PLAN))
    return dict.fromkeys(NEEDED, UNKNOWN) | own | made_states(folder, manifest)


def load_host(path: str | Path) -> nn.Module:
    """The unslimmed host of a run, with the run's weights, in eval mode."""
    check_run(Path(path))
    return read_host(Path(path))[0]


def load(path: str | Path, device: str | torch.device = "cpu") -> nn.Module:
    """The slim model of a run folder, in eval mode."""
    check_run(Path(path))
    with torch.device("cpu"):  # wherever else new tensors are made
        slim = read_slim(Path(path))
    return slim.to(device)


def read_slim(folder: Path) -> nn.Module:
    """The slim model of a run's files, whether or not they are as they were written."""
    host, plan = read_host(folder)
    steps = folder / STEPS_WEIGHTS
    return apply(host, plan, read_weights(steps) if steps.exists() else None)


def read_host(folder: Path) -> tuple[nn.Module, SlimPlan]:
    """The host of a run's files and the plan, after all of it was seen to go together on paper."""
    config, plan = read_config(folder), SlimPlan.load(folder / PLAN)
    weights, steps = folder / WEIGHTS, folder / STEPS_WEIGHTS
    slots = slots_in(weights)
    paper = on_paper(config["host"], plan, slots, str(weights))
    if steps.exists():
        check_steps(paper, slots_in(steps), str(steps))
    host = cast_(rebuild_host(config["host"]), slots)
    try:
        transform_for(host)
    except DataError:  # no picture has its channels; tensors have
        pass
    except Exception as error:
        raise RunError(f"The run's {CONFIG} does not describe how images are prepared: {error!r}.") from None
    load_weights_(host, weights)
    return host.eval(), plan


def load_teacher(run: Path, given: Path | None = None) -> nn.Module:
    """The network that a run was made from, with weights from the file given, else from the run itself.

    RunError when the run has only other weights by now; CheckpointError when the file's are another network's.
    """
    check_run(run)
    host, plan = read_host(run)
    # The plan, or the command that made the run, says which weights it was made from.
    wanted, kept = plan.provenance.get(HOST) or read_config(run).get("weights"), run / HOST_WEIGHTS
    if given is not None:
        weights = read_checkpoint(given)
        put_checkpoint_(cast_(host, slots_of(weights)), weights, str(given))
    elif kept.exists():
        load_weights_(cast_(host, slots_in(kept)), kept)
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


def seal(folder: Path) -> list[str]:
    """Take a run's files as they are now, after seeing that they make a model; the names of the files."""
    find_run(folder)
    with locked(folder / PLAN):
        with suppress(RunError):
            states(folder, read_manifest(folder), ())  # completes what was cut short
        weights, kept = read_slim(folder).state_dict(), folder / HOST_WEIGHTS
        if kept.exists():
            check_weights(read_host(folder)[0], read_weights(kept), str(kept))
        read_metrics(folder)
        names = [name for name in (*FILES, PLAN) if (folder / name).exists()]
        seal_files(folder, names, fingerprint(weights))
    return names
