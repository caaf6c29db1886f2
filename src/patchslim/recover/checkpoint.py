"""A recovery on disk, so that an interrupted one goes on where it was: tensors as safetensors, the rest as JSON.

The JSON names the file of tensors that belongs to it and is replaced last, so both are there or neither is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from patchslim.errors import PatchslimError, RunError
from patchslim.files import check_same, read_json, write_json
from patchslim.hosts.weights import read_weights, tensors_fingerprint, write_weights
from patchslim.slim import own_keys, plan_of

STATE, VERSION = "state.json", 1
FINISHED = "finished"


@dataclass
class Progress:
    """How far a recovery is: the stage at work, its own numbers and tensors, and what the stages before it gave."""

    stage: str
    numbers: Any = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    before: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Checkpoints:
    """Writes progress to a folder and reads it back; without a folder it does nothing."""

    def __init__(self, folder: Path | None, started: Mapping[str, Any]) -> None:
        self.folder, self.started = folder, started
        self.number = 0

    def read(self) -> Progress | None:
        """What the folder holds; RunError when it is damaged or was started from something else."""
        if self.folder is None or not (self.folder / STATE).exists():
            return None
        path = self.folder / STATE
        state = read_json(path, RunError, "recovery's state")
        try:
            self.number = int(state["number"])
            started, fields = state["started"], {name: state[name] for name in _FIELDS}
            progress = Progress(**fields)
            if state["version"] != VERSION:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise self.damaged() from None
        now = dict(self.started)
        if progress.stage == FINISHED and progress.numbers == now["weights"]:
            now.pop("weights")  # the result is in the starting weights' place already
        check_same(started, now, f"The recovery in {self.folder}", "resume with the same, or start over")
        try:
            progress.tensors = read_weights(self._tensors(self.number))
        except PatchslimError as error:
            raise RunError(f"The recovery can't be resumed: {error}") from None
        return progress

    def write(self, progress: Progress) -> None:
        """Replace what the folder holds."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.number += 1
        write_weights(self._tensors(self.number), progress.tensors)
        fields = {name: getattr(progress, name) for name in _FIELDS}
        write_json(self.folder / STATE, {"version": VERSION, "number": self.number, "started": self.started} | fields)
        for path in self.folder.glob("state-*.safetensors"):
            if path != self._tensors(self.number):
                with suppress(FileNotFoundError):
                    path.unlink()

    def damaged(self) -> RunError:
        """What to raise when the folder can't be what this patchslim wrote."""
        return RunError(f"The recovery in {self.folder} is damaged and can't be resumed; start over without it.")

    def _tensors(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"state-{number:06d}.safetensors"


def plan_fingerprint(slim: nn.Module) -> str | None:
    """A short hash of a model's plan, which also speaks for what its steps chose by; None where it has none."""
    plan = plan_of(slim)
    return None if plan is None else hashlib.sha256(plan.to_json().encode()).hexdigest()[:16]


def host_fingerprint(slim: nn.Module) -> str:
    """A short hash of a model's weights, less what its steps own: a run keeps those in another file."""
    own = own_keys(slim)
    return tensors_fingerprint({name: tensor for name, tensor in slim.state_dict().items() if name not in own})


_FIELDS = ("stage", "numbers", "outcomes", "before", "seconds")
