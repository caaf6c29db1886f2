"""The one training loop: distillation and supervised training differ only in their loss and their views."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from patchslim.data.views import Order, mix, seeded
from patchslim.errors import PatchslimWarning
from patchslim.events import Listener
from patchslim.hosts import Host
from patchslim.recover.config import RecoverConfig
from patchslim.recover.images import Parts, Views
from patchslim.recover.learning import TrainState, choose_learning_
from patchslim.recover.losses import Distillation, Supervised
from patchslim.slimmed import rectangular

LOOK = 50  # steps between two looks at the loss: each makes the host wait for the device
WARM_UP = 3  # steps before one is recorded, in which libraries set themselves up


class Training:
    """One stage's way through the images."""

    def __init__(
        self,
        student: Host,
        objective: Distillation | Supervised,
        parts: Parts,
        views: Views,
        config: RecoverConfig,
        epochs: int,
        listen: Listener,
    ) -> None:
        self.student, self.objective, self.parts, self.config = student, objective, parts, config
        self.views, self.epochs, self.listen = views, epochs, listen
        self.device = next(student.model.parameters()).device
        self.stage = sum(objective.name.encode())  # stages draw different random numbers
        count = len(parts.training)
        self.order = Order(count, min(config.batch_size, count), epochs, mix(config.seed, self.stage))
        self.learning = choose_learning_(student, classifier=objective.labels)
        factor = 1.0 if objective.labels else config.vector_factor
        self.state = TrainState(student, config, epochs, self.order.steps, factor)
        # A step can be recorded on a GPU, but labels bring random mixing and thresholds batches of changing shape.
        self.records = self.device.type == "cuda" and not objective.labels and rectangular(student.model)
        self.graphed: Graphed | None = None

    def run_(self, save: Callable[[TrainState], None]) -> dict[str, Any]:
        """Train to the end, or until held-out images stop it, and leave the best weights seen in the student."""
        state, stopped = self.state, "finished"
        if state.best_loss == math.inf:
            state.best_loss = state.start_loss = self.held_out_loss(self.student)
        batches = self.views.batches(self.parts.training, replace(self.order, first=state.epoch), self.device)
        while state.epoch < self.epochs:
            if state.since >= self.config.patience:
                stopped = "patience"
                break
            if not self._epoch_(batches):
                stopped = "diverged"
                break
            save(state)
        self.student.model.load_state_dict(state.best)
        if stopped == "diverged":
            weights = f"of epoch {state.best_epoch}" if state.best_epoch else "it began with"
            what = f"The loss of the {self.objective.name} was not finite any more; the weights {weights} are kept."
            warnings.warn(f"{what} Lower the learning rate.", PatchslimWarning, stacklevel=2)
        result = {"stage": self.objective.name, "epochs": state.epoch, "best_epoch": state.best_epoch}
        result |= {"before": state.start_loss, "after": state.best_loss, "stopped": stopped}
        self.listen({"event": "diverged" if stopped == "diverged" else "trained"} | result)
        return result

    def _epoch_(self, batches: Iterator[tuple[Tensor, Tensor]]) -> bool:
        """One epoch and its judgement; False where the loss is not finite any more."""
        state, start = self.state, time.monotonic()
        with seeded(self.config.seed, self.stage, state.epoch, device=self.device):
            loss = self._steps_(batches)
        held_out = self.held_out_loss(state.judged) if math.isfinite(loss) else math.nan
        if not math.isfinite(held_out):
            return False
        state.epoch += 1
        state.judge(held_out)
        event = {"event": "epoch", "stage": self.objective.name, "epoch": state.epoch, "epochs": self.epochs}
        numbers = {"loss": loss, "held_out": held_out, "best": state.best_loss, "best_epoch": state.best_epoch}
        self.listen(event | numbers | {"epoch_seconds": round(time.monotonic() - start, 2)})
        return True

    def _steps_(self, batches: Iterator[tuple[Tensor, Tensor]]) -> float:
        """The mean loss of an epoch; NaN as soon as it is not finite."""
        state, total, count = self.state, torch.zeros((), device=self.device), 0
        _drop_paths(self.student.model, True)
        for number in range(self.order.steps):
            images, labels = next(batches)
            state.next_step()
            if len(labels):
                total, count = total + self._step_(images, labels), count + 1
            if number % LOOK == LOOK - 1 and not bool(total.isfinite()):
                break
            self.listen({"event": "step", "stage": self.objective.name, "done": state.step, "total": state.total})
        _drop_paths(self.student.model, False)
        return float(total) / max(1, count)

    def _step_(self, images: Tensor, labels: Tensor) -> Tensor:
        images, labels = (tensor.to(self.device, non_blocking=True) for tensor in (images, labels))
        loss = self._gradients_(images, labels)
        nn.utils.clip_grad_norm_(self.learning, self.config.clip)
        self.state.optimizer.step()
        if self.state.average is not None:
            self.state.average.update(self.student.model, self.state.step)
        return loss

    def _gradients_(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, its gradients left in the parameters."""
        if self.graphed is None and self.records:
            self.graphed = Graphed(lambda batch: self._backward_(batch, labels), self.learning, images)
        if self.graphed is not None and self.graphed.fits(images):
            return self.graphed(images)
        self.state.optimizer.zero_grad()
        return self._backward_(images, labels)

    def _backward_(self, images: Tensor, labels: Tensor) -> Tensor:
        with self.config.autocast(self.device):
            loss = self.objective.loss(self.student, images, labels)
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def held_out_loss(self, student: Host) -> float:
        """The mean over the held-out images, as the model sees them."""
        total, count = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for images, labels in self.parts.held_out_batches():
            with self.config.autocast(self.device):
                loss = self.objective.held_out_loss(student, images.to(self.device), labels.to(self.device))
            total, count = total + loss.double() * len(images), count + len(images)
        return float(total) / max(1, count)


def _drop_paths(model: nn.Module, on: bool) -> None:
    """Stochastic depth and nothing else is on while training: other dropout belonged to the host's own training."""
    for module in model.modules():
        if isinstance(module, DropPath):
            module.train(on)


class Graphed:
    """The loss of a batch and its gradients, as a CUDA graph of one batch shape: recorded once and replayed, because on
    a GPU a small network's step is bound by the launching of kernels.

    What it computes has to be the same kernels for every batch: no choice made on the host, no waiting for the device.
    """

    def __init__(
        self, backward: Callable[[Tensor], Tensor], parameters: Sequence[nn.Parameter], images: Tensor
    ) -> None:
        """`backward` maps images to a loss whose gradients it has added to the parameters'."""
        self.parameters, self.images = parameters, images.clone()
        with torch.cuda.device(images.device):
            self._warm_up(backward)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = backward(self.images)
        self.gradients = [parameter.grad for parameter in parameters]

    def _warm_up(self, backward: Callable[[Tensor], Tensor]) -> None:
        """Run beside the stream at work, as recordings want it; leaves no gradients, so that the recording makes its
        own, which each replay writes over."""
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP):
                _forget(self.parameters)
                backward(self.images)
        torch.cuda.current_stream().wait_stream(beside)
        _forget(self.parameters)

    def fits(self, images: Tensor) -> bool:
        """Whether a batch has the recorded shape."""
        return images.shape == self.images.shape

    def __call__(self, images: Tensor) -> Tensor:
        """The loss; the gradients are where an optimiser looks for them."""
        self.images.copy_(images)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.graph.replay()
        return self.loss.clone()


def _forget(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
