"""A recovery on disk, so that an interrupted one goes on where it was: tensors as safetensors, the rest as JSON.

The JSON names the file of tensors that belongs to it and is replaced last, so both are there or neither is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from patchslim.errors import PatchslimError, RunError
from patchslim.files import check_same, read_json, write_json
from patchslim.hosts.weights import read_weights, write_weights

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


_FIELDS = ("stage", "numbers", "outcomes", "before", "seconds")


class Checkpoints:
    """Writes progress to a folder and reads it back; without a folder it does nothing."""

    def __init__(self, folder: Path | None, started: Mapping[str, Any]) -> None:
        self.folder, self.started = folder, started
        self.number = 0

    def read(self) -> Progress | None:
        """What the folder holds; RunError when it is damaged or was started from something else."""
        if self.folder is None or not (self.folder / STATE).exists():
            return None
        state = read_json(self.folder / STATE, RunError, "recovery's state")
        try:
            self.number = int(state["number"])
            started, progress = state["started"], Progress(**{name: state[name] for name in _FIELDS})
            if state["version"] != VERSION:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise self.damaged() from None
        now = dict(self.started)
        if progress.stage == FINISHED and progress.numbers == now["weights"]:
            now.pop("weights")  # the result is in the starting weights' place already
        check_same(started, now, f"The recovery in {self.folder}", "resume with the same, or start over")
        try:
            progress.tensors = read_weights(self._tensors(self.folder))
        except PatchslimError as error:
            raise RunError(f"The recovery can't be resumed: {error}") from None
        return progress

    def write(self, progress: Progress) -> None:
        """Replace what the folder holds."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.number += 1
        tensors = self._tensors(self.folder)
        write_weights(tensors, progress.tensors)
        fields = {name: getattr(progress, name) for name in _FIELDS}
        write_json(self.folder / STATE, {"version": VERSION, "number": self.number, "started": self.started} | fields)
        for path in self.folder.glob("state-*.safetensors"):
            if path != tensors:
                path.unlink(missing_ok=True)

    def damaged(self) -> RunError:
        """What to raise when the folder can't be what this patchslim wrote."""
        return RunError(f"The recovery in {self.folder} is damaged and can't be resumed; start over without it.")

    def _tensors(self, folder: Path) -> Path:
        return folder / f"state-{self.number:06d}.safetensors"
