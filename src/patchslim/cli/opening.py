"""Opening what a command is about: models by name, run folders, devices."""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT
from torch import nn

from patchslim.cli.terminal import console
from patchslim.errors import CheckpointError, PatchslimError, RunError, UnsupportedModel, first_words
from patchslim.hosts import open_hf
from patchslim.hosts.checkpoint import put_checkpoint_, read_checkpoint
from patchslim.hosts.hf_open import ON_HUB, is_hf_name
from patchslim.hosts.hub import answers, bars_for_eyes
from patchslim.packages import quiet
from patchslim.runs.store import CONFIG, holds_run
from patchslim.runs.sweep import check_one_run


def open_model(
    name: str,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    img_size: int | None = None,
    readout: str | None = None,
) -> nn.Module:
    """A model in eval mode: timm's with the weights asked for, or one of Hugging Face, which brings its own.

    `readout` is timm's `global_pool`, where the head shall read something else than the model comes with.
    """
    if is_hf_name(name):
        if readout is not None:
            raise UnsupportedModel(f"{name} is a Hugging Face model, whose head reads what its class says.")
        if checkpoint is not None or pretrained:
            given = "--pretrained" if checkpoint is None else "--checkpoint"
            raise CheckpointError(f"{name} is a Hugging Face model and brings its own weights; leave out {given}.")
        return open_hf(name, img_size)
    if is_run(name):
        raise RunError(f"{name} is a run already; give the model that it was made from.")
    if not timm.is_model(name):
        if name.strip():
            check_one_run(Path(name))
        raise UnsupportedModel(_unknown(name))
    if checkpoint is not None and pretrained:
        raise CheckpointError("Give --checkpoint or --pretrained, not both.")
    weights = {} if checkpoint is None else read_checkpoint(checkpoint)
    head = weights.get("head.weight")  # of a fine-tuned model's own classes, so that the user need not say them
    classes = None if head is None or head.ndim != 2 else head.shape[0]
    asked = {"--img-size": img_size, "--readout": readout}
    settings = {"img_size": img_size, "global_pool": readout, "num_classes": classes}
    settings = {key: value for key, value in settings.items() if value is not None}
    if pretrained:
        settings |= weights_at_hand(name)
    try:
        with quiet(), bars_for_eyes():
            model: nn.Module = timm.create_model(name, pretrained=pretrained, **settings)
    except Exception as error:
        if pretrained:
            raise CheckpointError(
                f"timm can't make {name} with pretrained weights ({first_words(error)}); where they can't be "
                "downloaded, give them as a file with --checkpoint."
            ) from None
        words = " and ".join(f"{option} {value}" for option, value in asked.items() if value is not None)
        words = f" with {words}" if words else ""
        raise UnsupportedModel(f"timm can't make {name}{words} ({first_words(error)}); try others.") from None
    if checkpoint is not None:
        put_checkpoint_(model, weights, str(checkpoint))
    return model.eval()


def weights_at_hand(name: str) -> dict[str, Any]:
    """What tells timm where pretrained weights are: nothing where they can be downloaded, else the hub's cache."""
    config = timm.get_pretrained_cfg(name)
    if config is None or config.file or not (config.hf_hub_id or config.url):
        return {}
    place = ENDPOINT if config.hf_hub_id else config.url
    if answers(place):
        return {}
    for file in (config.hf_hub_filename, "model.safetensors", "pytorch_model.bin"):
        found = try_to_load_from_cache(config.hf_hub_id, file) if config.hf_hub_id and file else None
        if isinstance(found, str):
            return {"pretrained_cfg_overlay": {"file": found}}
    raise CheckpointError(
        f"The pretrained weights of {name} can't be downloaded, because {place} can't be reached; "
        "give them as a file with --checkpoint."
    )


def _unknown(name: str) -> str:
    if not name.strip():
        return "The model's name is empty; give a timm model name, such as deit_tiny_patch16_224, or a run folder."
    if Path(name).is_dir():
        return (
            f"{name} is a folder but holds no run and no Hugging Face model: it has no {CONFIG}; "
            "give a run folder or a timm model name."
        )
    if Path(name).is_file():
        return f"{name} is a file; give a timm model name or a run folder, and weights with --checkpoint."
    close = near(name, timm.list_models())
    hint = f"did you mean {' or '.join(close)}?" if close else "timm.list_models() has the names."
    on_hub = re.fullmatch(r"\w[\w.-]*/[\w.-]+", name)
    hub = f" For a model on the Hugging Face hub give {ON_HUB}{name}." if on_hub else ""
    return f"There is no run folder and no timm model called {name}; {hint}{hub}"


def near(name: str, known: Sequence[str]) -> list[str]:
    """Names like one: at most three that go on from it, else the one with nearly the same letters."""
    word = name.split("/")[-1].lower().replace("-", "_")
    longer = [other for other in known if other.startswith(word)] if word else []
    return longer[:3] or difflib.get_close_matches(word, known, n=1)


def note_random(names: Iterable[str], checkpoint: Path | None, pretrained: bool) -> None:
    """Say so when a model has nothing but random weights: those of Hugging Face bring their own."""
    if checkpoint is None and not pretrained and not all(is_hf_name(name) for name in names):
        console.print("No --checkpoint and no --pretrained: the weights are random.")


def default_folder(kind: str, model: str) -> Path:
    """runs/MODEL or comparisons/MODEL; of a folder or a name on the hub, the last word of it."""
    if not model.strip():
        raise UnsupportedModel(_unknown(model))
    return Path(kind) / (Path(model.removeprefix(ON_HUB)).resolve().name if is_hf_name(model) else model)


def is_run(name: str) -> bool:
    """Whether a MODEL|RUN argument is a run folder."""
    return bool(name) and holds_run(Path(name)) and not is_hf_name(name)


def refuse_with_run(run: str, **options: Any) -> None:
    """Raise RunError when options that make a model are given with a run, which brings its own."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise RunError(f"{run} is a run and brings its own model and weights; leave out {', '.join(given)}.")


def open_device(name: str | None) -> torch.device:
    """The device asked for, or the best there is."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("only cpu, cuda and mps are known")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = first_words(error)
        raise PatchslimError(f"The device {name!r} can't be used here ({why}); try --device cpu.") from None
    return device


def workers_for(device: torch.device) -> int:
    """Loader processes: a GPU must not wait for images, a CPU needs its cores for the model."""
    return 8 if device.type == "cuda" else 0
