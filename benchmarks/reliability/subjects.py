"""What is damaged: finished runs of every kind, memories of interrupted work, checkpoints, exported files, images.

Each is made once, in a folder `it`, by the commands that a user would give; a case works on a copy.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reliability import pictures
from benchmarks.reliability.children import Child, Ended, patchslim, run
from patchslim.errors import PatchslimError

IT = "it"
LIMIT = 120.0  # seconds that making one may take
TRIES = 20  # to interrupt a command where it has something to go on with

MODEL = ("test_vit", "--img-size", "64")
DIGITS = ("--data", "digits", "--device", "cpu", "--images", "8", "--batch-size", "8")
SWEEP = ("slim", *MODEL, *DIGITS, "--target-macs", "0.8,0.7,0.6", "--method", "merge", "--out", IT)
RECOVER = ("finetune", IT, "--data", "digits", "--device", "cpu", "--images", "16", "--batch-size", "8")
COMPARE = (
    *("compare", *MODEL, *DIGITS, "--val", "digits:test", "--limit", "16", "--methods", "drop,tome,evit"),
    *("--target-macs", "0.7", "--seconds", "0.01", "--bench-batch-size", "1", "--mode", "eager", "--out", IT),
)
# Methods and settings that keep them short.
METHODS: dict[str, tuple[str, ...]] = {
    "drop": (),
    "cover": (),
    "merge": (),
    "predict": ("epochs=2",),
    "threshold": ("threshold=true", "epochs=2"),
    "ps": ("tune_epochs=1", "step=4"),
    "dps": ("epochs=2",),
    "tome": (),
    "evit": (),
    "power": (),
    "dynamicvit": ("epochs=1",),
    "hvt": (),
}
FORMATS: dict[str, tuple[str, ...]] = {
    "torch-export": (),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}
HF = {"vit": "ViTForImageClassification", "dinov2": "Dinov2ForImageClassification"}


@dataclass(frozen=True)
class Subject:
    """One thing to be damaged: the commands that make it, the last of them maybe interrupted."""

    name: str
    kind: str
    steps: tuple[tuple[str, ...] | Callable[[], None], ...]
    until: str = ""  # the last command is killed as soon as a file like this is there
    needs: tuple[str, ...] = ()  # packages

    @property
    def last(self) -> tuple[str, ...]:
        """The last command."""
        return next(step for step in reversed(self.steps) if not callable(step))

    def place(self, work: Path) -> Path:
        """The folder that holds `it`."""
        return work / "subjects" / self.name.replace(" ", "-")

    def files(self, work: Path) -> list[str]:
        """Every file that may be damaged."""
        folder = self.place(work) / IT
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def slim_words(method: str, model: tuple[str, ...] = MODEL, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The command that makes a small run by a method, into `it`."""
    name = "predict" if method == "threshold" else method
    settings = [word for setting in METHODS[method] for word in ("--set", setting)]
    return ("slim", *model, *DIGITS, "--target-macs", "0.7", "--method", name, *settings, *more, "--out", IT)


@cache
def subjects() -> dict[str, Subject]:
    """All that can be made with the packages that are here, by name."""
    return {subject.name: subject for subject in _all() if here(subject.needs)}


def here(packages: Iterable[str]) -> bool:
    """Whether packages are installed."""
    return all(find_spec(package) is not None for package in packages)


def _all() -> Iterator[Subject]:
    for method in METHODS:
        yield Subject(f"run {method}", "run", (slim_words(method),))
    for short, name in HF.items():
        words = slim_words("merge", ("host",))
        yield Subject(f"run of {short}", "run", (partial(save_hf, name, "host"), words), needs=("transformers",))
        yield Subject(f"folder {short}", "hf", (partial(save_hf, name, IT),), needs=("transformers",))
    for method in ("drop", "merge"):
        learnt = (*RECOVER, "--epochs", "1", "--block-epochs", "1")
        yield Subject(f"run {method} recovered", "run", (slim_words(method), learnt))
        unfinished = (*RECOVER, "--epochs", "30", "--block-epochs", "2")
        yield Subject(f"recovery of {method}", "recovery", (slim_words(method), unfinished), "recovery/state.json")
    for method, until in (("drop", "log.jsonl"), ("merge", "search/*.safetensors"), ("cover", "search/cache.jsonl")):
        many = ("--images", "48")
        yield Subject(f"search by {method}", "search", (slim_words(method, more=many),), until)
    for method, until in (("ps", "search/*.safetensors"), ("predict", "search/*.safetensors")):
        yield Subject(f"search by {method}", "search", (slim_words(method),), until)
    yield Subject("sweep", "sweep", (SWEEP,))
    yield Subject("sweep unfinished", "sweep", (SWEEP,), "macs-0.8/plan.json")
    yield Subject("comparison", "comparison", (COMPARE,))
    yield Subject("comparison unfinished", "comparison", (COMPARE,), "cells/*@*.json")
    for format, needs in FORMATS.items():
        words = ("export", IT, "--format", format)
        yield Subject(f"exported by {format}", "exported", (slim_words("merge"), words), needs=needs)
    for name in ("weights.safetensors", "weights.pth"):
        yield Subject(name, "weights", (partial(save_weights, name),))
    yield Subject("images", "images", (partial(pictures.save_folder, IT),))
    yield Subject("shards", "shards", (partial(pictures.save_shards, IT),))


def save_weights(name: str) -> None:
    """A user's own checkpoint, in `it`: safetensors, or a .pth of tensors alone."""
    import timm
    import torch
    from safetensors.torch import save_file

    Path(IT).mkdir()
    torch.manual_seed(1)
    weights = timm.create_model("test_vit", img_size=64).state_dict()
    (save_file if name.endswith(".safetensors") else torch.save)(weights, f"{IT}/{name}")


def save_hf(name: str, folder: str) -> None:
    """A small model of transformers' with random weights."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, name.replace("ForImageClassification", "Config"))
    sizes: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3}
    sizes |= {"image_size": 32, "patch_size": 8, "mlp_ratio": 2, "intermediate_size": 48}
    labels = {number: f"digit {number}" for number in range(10)}
    getattr(transformers, name)(config(**sizes, id2label=labels)).save_pretrained(folder)


def make(subject: Subject, work: Path) -> None:
    """Make one, in children of this process."""
    place = subject.place(work)
    if place.exists():
        return
    for _ in range(TRIES):
        place.mkdir(parents=True)
        for number, step in enumerate(subject.steps, start=1):
            action = step if callable(step) else partial(patchslim, *step)
            if number < len(subject.steps) or not subject.until:
                _check(subject, run(action, place, LIMIT))
            elif _interrupted(action, place, subject.until):
                return
            else:  # it was done before it could be stopped
                shutil.rmtree(place)
                break
        else:
            return
    raise PatchslimError(f"The {subject.name} can't be interrupted in time; make its command longer.")


def _interrupted(action: Callable[[], None], place: Path, until: str) -> bool:
    """Kill an action once a file is there; False where it has ended before."""
    child = Child(action, place)
    while child.running(time.monotonic() - child.start + 0.002):
        if any((place / IT).glob(until)):
            return child.end(0.0).hung
    _check(None, child.end(LIMIT))
    return False


def _check(subject: Subject | None, ended: Ended) -> None:
    if ended.code:
        raise PatchslimError(f"{subject and subject.name} can't be made: {ended.err.strip()[-400:]}")


def noise(size: int) -> Any:
    """Images of nothing, (2, 3, size, size): what models are asked about."""
    return np.random.RandomState(0).randn(2, 3, size, size).astype(np.float32)
