"""The stages of a recovery, one after the other, with a checkpoint after every step worth keeping."""

from __future__ import annotations

import copy
import time
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from patchslim.data import TrainingSource
from patchslim.events import Listener
from patchslim.hosts import Host
from patchslim.hosts.weights import check_weights
from patchslim.recover.blockwise import STAGE, Blockwise
from patchslim.recover.checkpoint import FINISHED, Checkpoints, Progress, host_fingerprint
from patchslim.recover.checks import check_channels, check_finite
from patchslim.recover.config import RecoverConfig
from patchslim.recover.distill import Distillation
from patchslim.recover.judge import learnt, measure
from patchslim.recover.outputs import open_student
from patchslim.recover.parts import Parts, labelled_part, split
from patchslim.recover.rows import exact_plan
from patchslim.recover.supervised import Supervised, set_drop_path_
from patchslim.recover.train import Objective, Training
from patchslim.recover.train_state import TrainState, part
from patchslim.recover.views import Views, views_for
from patchslim.slim import rectangular

Made = TypeVar("Made", bound=nn.Module)  # from a host, by any method


class Recovered(NamedTuple, Generic[Made]):
    """A recovered model, and what became of it in numbers."""

    model: Made
    report: dict[str, Any]


class Recovery(Generic[Made]):
    """The stages of one recovery, one after the other."""

    def __init__(
        self,
        slim: Made,
        teacher: Host,
        source: TrainingSource,
        config: RecoverConfig,
        checkpoints: Checkpoints,
        listen: Listener,
    ) -> None:
        self.slim, self.teacher, self.source, self.config = slim, teacher, source, config
        self.checkpoints, self.listen = checkpoints, listen
        self.start = time.monotonic()
        self.student = open_student(slim)
        device = next(slim.parameters()).device
        self.distillation = Distillation(teacher, exact_plan(slim), config)
        self.parts = split(source, config.held_out, config.seed, config.batch_size, device)
        check_channels(self.parts, teacher.info)
        self.labelled: Parts | None = None
        if config.supervised_epochs:
            labelled = labelled_part(source, teacher.info.classes)
            self.labelled = split(labelled, config.held_out, config.seed, config.batch_size, device)

    def run(self) -> Recovered[Made]:
        """All stages that the settings ask for."""
        stages, progress = self._stages(), self.checkpoints.read()
        if progress is None:
            progress = Progress(stages[0], before=check_finite(self._measure()))
        else:
            check_weights(self.student.model, weights := part(progress.tensors, "model"), "The recovery's checkpoint")
            self.student.model.load_state_dict(weights)
        self.start = time.monotonic() - progress.seconds
        while progress.stage != FINISHED:
            outcome = self._run_stage(progress)
            progress.outcomes.append(outcome)
            rest = stages[stages.index(progress.stage) + 1 :]
            progress.stage = FINISHED if not rest or outcome["stopped"] == "diverged" else rest[0]
            result = host_fingerprint(self.student.model) if progress.stage == FINISHED else None
            self._keep(progress, result, self._weights())
        return self._result(progress)

    def _stages(self) -> list[str]:
        config = self.config
        distilled = config.epochs_over(len(self.parts.training))
        epochs = {STAGE: config.block_epochs, "distillation": distilled, "supervised": config.supervised_epochs}
        return [name for name, count in epochs.items() if count]

    def _run_stage(self, progress: Progress) -> dict[str, Any]:
        if progress.stage == STAGE:
            return self._blocks(progress)
        if progress.stage == "distillation":
            views = views_for(self.student, self.source, self.config)
            epochs = self.config.epochs_over(len(self.parts.training))
            return self._train(progress, self.distillation, self.parts, views, epochs)
        return self._supervised(progress)

    def _blocks(self, progress: Progress) -> dict[str, Any]:
        plan = exact_plan(self.slim)
        if plan is None or not plan.rectangular:
            why = "images keep different numbers of patches" if plan else "no plan says what its tokens stand for"
            skipped = {"stage": STAGE, "stopped": "skipped", "reason": why}
            self.listen({"event": "skipped"} | skipped)
            return skipped

        def save(found: list[dict[str, Any]]) -> None:
            self._keep(progress, found, self._weights())

        blockwise = Blockwise(self.student, self.teacher, plan, self.config)
        found = blockwise.run_(self.parts, self.listen, progress.numbers or [], save)
        # Better blocks need not make a better network: what they give together decides.
        before, after = progress.before["loss"], self._measure()["loss"]
        if not after < before:
            self.student.model.load_state_dict(self.slim.state_dict())
        outcome = {"stage": STAGE, "before": before, "after": min(before, after), "kept": after < before}
        self.listen({"event": "trained"} | outcome)
        return outcome | {"stopped": "finished", "blocks": found}

    def _supervised(self, progress: Progress) -> dict[str, Any]:
        assert self.labelled is not None
        config, blocks = self.config, self.student.blocks
        if rectangular(self.slim):  # packed batches have no images to drop a path of
            set_drop_path_(blocks, config.drop_path)
        objective = Supervised(self.teacher.info.classes, config, self.distillation)
        views = views_for(self.student, self.source, config, strong=True)
        return self._train(progress, objective, self.labelled, views, config.supervised_epochs)

    def _train(
        self, progress: Progress, objective: Objective, parts: Parts, views: Views, epochs: int
    ) -> dict[str, Any]:
        training = Training(self.student, objective, parts, views, self.config, epochs, self.listen)
        if progress.numbers is not None:
            try:
                training.state.restore_(progress.numbers, progress.tensors)
            except (KeyError, RuntimeError, TypeError, ValueError):
                raise self.checkpoints.damaged() from None

        def save(state: TrainState) -> None:
            self._keep(progress, state.numbers(), state.tensors())

        return training.run_(save)

    def _keep(self, progress: Progress, numbers: Any, tensors: dict[str, Tensor]) -> None:
        """A checkpoint, on disk before this returns."""
        progress.numbers, progress.tensors = numbers, tensors
        progress.seconds = time.monotonic() - self.start
        self.checkpoints.write(progress)

    def _weights(self) -> dict[str, Tensor]:
        return {f"model.{name}": tensor for name, tensor in self.student.model.state_dict().items()}

    def _measure(self) -> dict[str, Any]:
        return measure(self.student, self.distillation, self.parts, self.config)

    def _result(self, progress: Progress) -> Recovered[Made]:
        model = copy.deepcopy(self.slim)
        model.load_state_dict(self.student.model.state_dict())
        report = {
            "images": len(self.source),
            "held_out_images": len(self.parts.held_out),
            "seconds": round(progress.seconds, 1),
            "before": progress.before,
            "after": self._measure(),
            "changed": any(map(learnt, progress.outcomes)),
            "skipped_images": self.parts.training.skipped + self.parts.held_out.skipped,
            "stages": progress.outcomes,
            "stopped": progress.outcomes[-1]["stopped"],
        }
        return Recovered(model.eval(), report)
