"""A recovery on disk, so that an interrupted one goes on where it was: tensors as safetensors, the rest as JSON.

The JSON names the file of tensors that belongs to it, with its digest, and is replaced last, so both are there or
neither is. It has a digest of its own.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from patchslim.errors import PatchslimError, RunError
from patchslim.files import Digest, check_same, checked, digest, is_as, read_sealed, remove_unfinished, write_sealed
from patchslim.hosts.weights import read_weights, write_weights

STATE, VERSION = "state.json", 2
FINISHED = "finished"
OVER = "start over with --again, or without this folder"
Count = Annotated[int, Field(ge=0, le=10**12, strict=True)]


class Measures(BaseModel):
    """How close two networks are on held-out images."""

    model_config = ConfigDict(extra="allow")

    loss: Annotated[float, Field(allow_inf_nan=False)]
    kl: float | None = None
    agreement: float | None = None
    macs: float | None = None


class Outcome(BaseModel):
    """What became of a stage."""

    model_config = ConfigDict(extra="allow")

    stage: str
    stopped: str
    best_epoch: Count = 0
    kept: bool = False


class Numbers(BaseModel):
    """How far a training is."""

    model_config = ConfigDict(extra="forbid")

    epoch: Count
    step: Count
    since: Count
    best_loss: float
    start_loss: float
    best_epoch: Count


class State(BaseModel):
    """`state.json`. `numbers` are those of the stage at work: of a training, of finished blocks, or a fingerprint."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[2]
    number: Count
    tensors: Digest
    started: dict[str, Any]
    stage: Literal["blocks", "distillation", "supervised", "finished"]
    numbers: Numbers | list[dict[str, Any]] | str | None
    outcomes: list[Outcome]
    before: Measures
    seconds: float = Field(ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        kind = {"blocks": list, FINISHED: str}.get(self.stage, Numbers)
        fits = isinstance(self.numbers, kind) or (self.numbers is None and self.stage != FINISHED)
        if not fits or (self.stage == FINISHED and not self.outcomes):
            raise ValueError(f"its numbers are not those of the stage {self.stage}")
        return self


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
        state = read_sealed(self.folder / STATE, RunError, "recovery's state")
        checked(State, state, RunError, f"The recovery's state {self.folder / STATE}")
        self.number, started = state["number"], state["started"]
        progress = Progress(**{name: state[name] for name in _FIELDS})
        now = dict(self.started)
        if progress.stage == FINISHED and progress.numbers == now["weights"]:
            now.pop("weights")  # the result is in the starting weights' place already
        check_same(started, now, f"The recovery in {self.folder}", "resume with the same, or start over")
        tensors = self._tensors(self.folder)
        if not is_as(tensors, Digest(**state["tensors"])):
            raise RunError(f"{tensors} is missing or not as it was written, so the recovery can't go on; {OVER}.")
        try:
            progress.tensors = read_weights(tensors)
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
        about = {"version": VERSION, "number": self.number, "tensors": asdict(digest(tensors)), "started": self.started}
        write_sealed(self.folder / STATE, about | fields)
        remove_unfinished(self.folder)
        for path in self.folder.glob("state-*.safetensors"):
            if path != tensors:
                path.unlink(missing_ok=True)

    def damaged(self) -> RunError:
        """What to raise when the folder can't be what this patchslim wrote."""
        return RunError(f"The recovery in {self.folder} is damaged and can't be resumed; {OVER}.")

    def _tensors(self, folder: Path) -> Path:
        return folder / f"state-{self.number:06d}.safetensors"
