"""A whole recovery: from a slim model, the network it was made from and images, stage by stage to the slim model with
its accuracy back, and a checkpoint after every step worth keeping."""

import copy
import hashlib
import math
import time
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from patchslim.data import AnyImages
from patchslim.errors import RecoverError
from patchslim.events import Listener, silent
from patchslim.hosts.weights import check_weights, tensors_fingerprint, weights_fingerprint
from patchslim.recover.blockwise import STAGE, Blockwise
from patchslim.recover.checkpoint import FINISHED, Checkpoints, Progress
from patchslim.recover.config import RecoverConfig
from patchslim.recover.images import Parts, labelled_part, split, training_source, views_for
from patchslim.recover.learning import named, part
from patchslim.recover.losses import Distillation, Supervised, measure, set_drop_path_
from patchslim.recover.networks import open_student, open_teacher
from patchslim.recover.train import Training
from patchslim.slimmed import made_from, own_keys, plan_of, rectangular

Made = TypeVar("Made", bound=nn.Module)  # from a host, by any method


class Recovered(NamedTuple, Generic[Made]):
    """A recovered model, and what became of it in numbers."""

    model: Made
    report: dict[str, Any]


def finetune(
    slim: Made,
    teacher: nn.Module,
    images: AnyImages,
    config: RecoverConfig | None = None,
    *,
    checkpoint: str | Path | None = None,
    listen: Listener = silent,
) -> Made:
    """A slim model with its accuracy back, learnt from the network it was made from. Both are left as they were.

    No labels are needed unless `config.supervised_epochs` asks for them. Given a `checkpoint` folder, every epoch is
    kept there, and a recovery that finds one goes on from it. It runs on the slim model's device.
    """
    return recover(slim, teacher, images, config, checkpoint=checkpoint, listen=listen).model


@torch.enable_grad()  # whatever the caller has switched off
def recover(
    slim: Made,
    teacher: nn.Module,
    images: AnyImages,
    config: RecoverConfig | None = None,
    *,
    checkpoint: str | Path | None = None,
    listen: Listener = silent,
) -> Recovered[Made]:
    """The same, with the report that a run folder keeps."""
    folder = None if checkpoint is None else Path(checkpoint)
    recovery = Recovery(slim, teacher, images, config or RecoverConfig(), folder, listen)
    report = recovery.run()
    model = copy.deepcopy(slim)
    model.load_state_dict(recovery.student.model.state_dict())
    return Recovered(model.eval(), report)


class Recovery:
    """The stages of one recovery, one after the other."""

    def __init__(
        self,
        slim: nn.Module,
        teacher: nn.Module,
        images: AnyImages,
        config: RecoverConfig,
        folder: Path | None,
        listen: Listener,
    ) -> None:
        info, plan = made_from(slim), plan_of(slim)
        if info is None:
            raise RecoverError("Only a slim model can be recovered; make one with patchslim.slim or load a run.")
        self.slim, self.config, self.listen = slim, config, listen
        self.source, self.teacher = training_source(images, info), open_teacher(teacher, slim, info)
        self.student = open_student(slim)
        self.checkpoints = Checkpoints(
            folder,
            {
                "settings": config.decisive(),
                "images": {"count": len(self.source), "fingerprint": self.source.fingerprint},
                # The plan also speaks for what its steps chose by.
                "plan": None if plan is None else hashlib.sha256(plan.to_json().encode()).hexdigest()[:16],
                "weights": _host_fingerprint(slim),
                "teacher": weights_fingerprint(self.teacher.model),
            },
        )
        # Only of an exact plan it is known patch by patch what a token stands for.
        self.distillation = Distillation(self.teacher, plan if plan and plan.exact else None, config)
        settings = config.held_out, config.seed, config.batch_size, next(slim.parameters()).device
        self.parts = split(self.source, *settings)
        self.labelled: Parts | None = None
        if config.supervised_epochs:
            self.labelled = split(labelled_part(self.source, info.classes), *settings)
        distilled = config.epochs_over(len(self.parts.training))
        epochs = {STAGE: config.block_epochs, "distillation": distilled, "supervised": config.supervised_epochs}
        self.epochs = {stage: count for stage, count in epochs.items() if count}

    def run(self) -> dict[str, Any]:
        """All stages that the settings ask for; what became of it, and the student is as good as it gets."""
        stages, progress = list(self.epochs), self.checkpoints.read()
        if progress is None:
            progress = Progress(stages[0], before=self._measure())
            if not math.isfinite(progress.before["loss"]):
                raise RecoverError(
                    "The loss is not a finite number before anything was learnt; "
                    "the weights of the model or of the teacher are broken."
                )
        else:
            if progress.stage not in (*stages, FINISHED):
                raise self.checkpoints.damaged()
            weights = part(progress.tensors, "model")
            check_weights(self.student.model, weights, "The recovery's checkpoint")
            self.student.model.load_state_dict(weights)
        self.start = time.monotonic() - progress.seconds
        while progress.stage != FINISHED:
            outcome = self._blocks(progress) if progress.stage == STAGE else self._train(progress)
            progress.outcomes.append(outcome)
            rest = stages[stages.index(progress.stage) + 1 :]
            progress.stage = FINISHED if not rest or outcome["stopped"] == "diverged" else rest[0]
            result = _host_fingerprint(self.student.model) if progress.stage == FINISHED else None
            self._keep(progress, result, named("model", self.student.model.state_dict()))
        return {
            "images": len(self.source),
            "held_out_images": len(self.parts.held_out),
            "seconds": round(progress.seconds, 1),
            "before": progress.before,
            "after": self._measure(),
            "changed": any(outcome.get("best_epoch") or outcome.get("kept") for outcome in progress.outcomes),
            "skipped_images": self.parts.training.skipped + self.parts.held_out.skipped,
            "stages": progress.outcomes,
            "stopped": progress.outcomes[-1]["stopped"],
        }

    def _blocks(self, progress: Progress) -> dict[str, Any]:
        plan = self.distillation.plan
        if plan is None or not plan.rectangular:
            why = "images keep different numbers of patches" if plan else "no plan says what its tokens stand for"
            skipped = {"stage": STAGE, "stopped": "skipped", "reason": why}
            self.listen({"event": "skipped"} | skipped)
            return skipped
        blockwise = Blockwise(self.student, self.teacher, plan, self.config)
        found = blockwise.run_(
            self.parts,
            self.listen,
            progress.numbers or [],
            save=lambda found: self._keep(progress, found, named("model", self.student.model.state_dict())),
        )
        # Better blocks need not make a better network: what they give together decides.
        before, after = progress.before["loss"], self._measure()["loss"]
        if not after < before:
            self.student.model.load_state_dict(self.slim.state_dict())
        outcome = {"stage": STAGE, "before": before, "after": min(before, after), "kept": after < before}
        self.listen({"event": "trained"} | outcome)
        return outcome | {"stopped": "finished", "blocks": found}

    def _train(self, progress: Progress) -> dict[str, Any]:
        """Distillation, or training with labels."""
        objective: Distillation | Supervised = self.distillation
        parts, strong = self.parts, progress.stage == Supervised.name
        if strong:
            assert self.labelled is not None
            parts = self.labelled
            objective = Supervised(self.teacher.info.classes, self.config, self.distillation)
            if rectangular(self.slim):  # packed batches have no images to drop a path of
                set_drop_path_(self.student.blocks, self.config.drop_path)
        views = views_for(self.student, self.source, self.config, strong)
        epochs = self.epochs[progress.stage]
        training = Training(self.student, objective, parts, views, self.config, epochs, self.listen)
        if progress.numbers is not None:
            try:
                training.state.restore_(progress.numbers, progress.tensors)
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
                raise self.checkpoints.damaged() from None
        return training.run_(save=lambda state: self._keep(progress, state.numbers(), state.tensors()))

    def _keep(self, progress: Progress, numbers: Any, tensors: dict[str, Tensor]) -> None:
        """A checkpoint, on disk before this returns."""
        progress.numbers, progress.tensors = numbers, tensors
        progress.seconds = time.monotonic() - self.start
        self.checkpoints.write(progress)

    def _measure(self) -> dict[str, Any]:
        return measure(self.student, self.distillation, self.parts, self.config)


def _host_fingerprint(slim: nn.Module) -> str:
    """A short hash of a model's weights, less what its steps own: a run keeps those in another file."""
    own = own_keys(slim)
    return tensors_fingerprint({name: tensor for name, tensor in slim.state_dict().items() if name not in own})
