"""A whole recovery: from a slim model, the network it was made from and images, to the slim model with its accuracy
back."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.data.transform import Style, Transform, training_transform_for, transform_for
from patchslim.hosts import Host, open_slim
from patchslim.hosts.weights import weights_fingerprint
from patchslim.recover.blockwise import STAGE, Blockwise
from patchslim.recover.checkpoint import FINISHED, Keeper, Progress
from patchslim.recover.checks import check_slim, open_teacher, training_source
from patchslim.recover.config import RecoverConfig
from patchslim.recover.course import Course, part
from patchslim.recover.distill import Distillation
from patchslim.recover.judge import measure
from patchslim.recover.parts import Parts, labelled_part, split
from patchslim.recover.supervised import Supervised, set_drop_path_
from patchslim.recover.train import Objective, Training
from patchslim.search.topdown import Listener
from patchslim.slim import SlimModel
from patchslim.slim.predictor import is_predictor_key

MILD_CROP = 0.8  # of images whose mirror image is something else: there, place and size matter too


class Recovered(NamedTuple):
    """A recovered model, and what became of it in numbers."""

    model: SlimModel
    report: dict[str, Any]


def finetune(
    slim: nn.Module,
    teacher: nn.Module,
    images: ImageSource | Tensor,
    config: RecoverConfig | None = None,
    *,
    checkpoint: str | Path | None = None,
    listen: Listener = lambda event: None,
) -> SlimModel:
    """A slim model with its accuracy back, learnt from the network it was made from. Both are left as they were.

    No labels are needed unless `config.supervised_epochs` asks for them. Given a `checkpoint` folder, every epoch is
    kept there, and a recovery that finds one goes on from it. It runs on the slim model's device.
    """
    return recover(slim, teacher, images, config, checkpoint=checkpoint, listen=listen).model


def recover(
    slim: nn.Module,
    teacher: nn.Module,
    images: ImageSource | Tensor,
    config: RecoverConfig | None = None,
    *,
    checkpoint: str | Path | None = None,
    listen: Listener = lambda event: None,
) -> Recovered:
    """The same, with the report that a run folder keeps."""
    model, source = check_slim(slim), training_source(images, check_slim(slim).host_info)
    config = config or RecoverConfig()
    host = open_teacher(teacher, model)
    started = {
        "settings": config.as_dict(),
        "images": {"count": len(source), "fingerprint": source.fingerprint},
        "weights": weights_fingerprint(model),
        "teacher": weights_fingerprint(host.model),
    }
    folder = None if checkpoint is None else Path(checkpoint)
    return Recovery(model, host, source, config, Keeper(folder, started), listen).run()


class Recovery:
    """The stages of one recovery, one after the other."""

    def __init__(
        self, slim: SlimModel, teacher: Host, source: Any, config: RecoverConfig, keeper: Keeper, listen: Listener
    ) -> None:
        self.slim, self.teacher, self.source, self.config = slim, teacher, source, config
        self.keeper, self.listen = keeper, listen
        self.student = _student(slim)
        device = next(slim.parameters()).device
        self.distillation = Distillation(teacher, slim.plan, config, device)
        self.parts = split(source, config.held_out, config.seed, config.batch_size)
        self.labelled: Parts | None = None
        if config.supervised_epochs:
            labelled = labelled_part(source, slim.host_info.classes)
            self.labelled = split(labelled, config.held_out, config.seed, config.batch_size)

    def run(self) -> Recovered:
        """All stages that the settings ask for."""
        start = time.monotonic()
        stages = self._stages()
        progress = self.keeper.read()
        if progress is None:
            progress = Progress(stages[0], before=self._measure())
        else:
            self.student.model.load_state_dict(part(progress.tensors, "model"))
        earlier = progress.seconds
        while progress.stage != FINISHED:
            progress.seconds = earlier + time.monotonic() - start
            outcome = self._run_stage(progress)
            progress.outcomes.append(outcome)
            rest = stages[stages.index(progress.stage) + 1 :]
            progress.stage = FINISHED if not rest or outcome["stopped"] == "diverged" else rest[0]
            progress.seconds = earlier + time.monotonic() - start
            progress.numbers, progress.tensors = None, self._weights()
            self.keeper.write(progress)
        return self._result(progress)

    def _stages(self) -> list[str]:
        config = self.config
        epochs = {STAGE: config.block_epochs, "distillation": config.epochs, "supervised": config.supervised_epochs}
        return [name for name, count in epochs.items() if count]

    def _run_stage(self, progress: Progress) -> dict[str, Any]:
        if progress.stage == STAGE:
            return self._blocks(progress)
        if progress.stage == "distillation":
            transform = self._transform(Style(self._crop, self.source.mirrors))
            return self._train(progress, self.distillation, self.parts, transform, self.config.epochs)
        return self._supervised(progress)

    def _blocks(self, progress: Progress) -> dict[str, Any]:
        if self.slim.plan.mode == "threshold":
            skipped = {"stage": STAGE, "stopped": "skipped", "reason": "images keep different numbers of patches"}
            self.listen({"event": "skipped"} | skipped)
            return skipped

        def save(found: list[dict[str, Any]]) -> None:
            progress.numbers, progress.tensors = found, self._weights()
            self.keeper.write(progress)

        blockwise = Blockwise(self.student, self.teacher, self.slim.plan, self.config)
        found = blockwise.run_(self.parts, self.listen, progress.numbers or [], save)
        return {"stage": STAGE, "stopped": "finished", "blocks": found}

    def _supervised(self, progress: Progress) -> dict[str, Any]:
        assert self.labelled is not None
        config, blocks = self.config, self.student.blocks
        if self.slim.plan.mode != "threshold":  # packed batches have no images to drop a path of
            set_drop_path_(blocks, config.drop_path)
        objective = Supervised(self.slim.host_info.classes, config, self.distillation)
        style = Style(self._crop, self.source.mirrors, config.rand_augment or None, config.erase)
        return self._train(progress, objective, self.labelled, self._transform(style), config.supervised_epochs)

    def _train(
        self, progress: Progress, objective: Objective, parts: Parts, transform: Transform, epochs: int
    ) -> dict[str, Any]:
        training = Training(self.student, objective, parts, transform, self.config, epochs, self.listen)
        if progress.numbers is not None:
            training.course.restore_(progress.numbers, progress.tensors)

        def save(course: Course) -> None:
            progress.numbers, progress.tensors = course.numbers(), course.tensors()
            self.keeper.write(progress)

        return training.run_(save)

    @property
    def _crop(self) -> float:
        return self.config.crop_scale if self.source.mirrors else max(MILD_CROP, self.config.crop_scale)

    def _transform(self, style: Style) -> Transform:
        # A model of many channels takes tensors only, and they stay as they are.
        readable = self.slim.host_info.channels in (1, 3)
        return training_transform_for(self.slim, style) if readable else transform_for(None)

    def _weights(self) -> dict[str, Tensor]:
        return {f"model.{name}": tensor for name, tensor in self.student.model.state_dict().items()}

    def _measure(self) -> dict[str, Any]:
        return measure(self.student, self.distillation, self.parts, self.config)

    def _result(self, progress: Progress) -> Recovered:
        model = copy.deepcopy(self.slim)
        model.load_state_dict(self.student.model.state_dict())
        report = {
            "images": len(self.source),
            "held_out_images": len(self.parts.held_out),
            "seconds": round(progress.seconds, 1),
            "before": progress.before,
            "after": self._measure(),
            "stages": progress.outcomes,
            "stopped": progress.outcomes[-1]["stopped"],
        }
        return Recovered(model.eval(), report)


def _student(slim: SlimModel) -> Host:
    """A copy that learns, all but its predictors: the plan holds their fingerprint."""
    model = copy.deepcopy(slim).eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not is_predictor_key(name))
    return open_slim(model, slim.host_info)
