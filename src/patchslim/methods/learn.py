"""How methods learn what to remove: a few parameters, the host frozen, and the host's own answers as the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from patchslim.data.views import mix, seeded
from patchslim.errors import MethodError
from patchslim.hosts import Host
from patchslim.methods.task import Task
from patchslim.recover import RecoverConfig
from patchslim.recover.losses import Distillation
from patchslim.recover.networks import Outputs, outputs

Loss = Callable[[Host, Tensor, Outputs], Tensor]  # frozen host, images (B, C, H, W), what the host says of them → ()


def check_epochs(epochs: int) -> None:
    """Raise MethodError for a number of epochs that makes no sense."""
    if epochs < 1:
        raise MethodError(f"epochs has to be at least 1, not {epochs}.")


def price_of(epoch: int, epochs: int, first: float, last: float) -> float:
    """A penalty's weight in an epoch (from 1): it rises by one factor per epoch, so that a network is pressed
    together slowly and every budget is passed on the way."""
    return float(first * (last / first) ** ((epoch - 1) / max(1, epochs - 1)))


class Lessons:
    """The calibration images in memory, and what the host says of them."""

    def __init__(self, task: Task, epochs: int) -> None:
        self.task, self.epochs = task, epochs
        self.host = task.fresh_host()
        self.host.model.requires_grad_(False)
        plain = RecoverConfig(seed=task.seed, temperature=1.0)  # as measured in docs/notebook
        self.distillation = Distillation(self.host, None, plain)
        self.batches = [images.to(task.device) for images, _ in task.images.batches(task.batch_size)]
        self.taught = [self._says(images) for images in self.batches]
        self.epoch = 0

    @torch.no_grad()
    def _says(self, images: Tensor) -> Outputs:
        return outputs(self.host, images, self.host.info.depth)

    @torch.enable_grad()
    def run_epoch(
        self, loss: Loss, optimizer: torch.optim.Optimizer, project: Callable[[], None] = lambda: None
    ) -> None:
        """One pass over all images; `project` brings parameters back to where they may be, after every step."""
        self.epoch += 1
        with seeded(self.task.seed, self.epoch, device=self.task.device):
            for images, taught in self._shuffled():
                value = loss(self.host, images, taught)
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                project()

    def _shuffled(self) -> Iterator[tuple[Tensor, Outputs]]:
        generator = torch.Generator().manual_seed(mix(self.task.seed, self.epoch))
        for index in torch.randperm(len(self.batches), generator=generator).tolist():
            yield self.batches[index], self.taught[index]

    def learn(
        self,
        loss: Loss,
        parameters: Sequence[Tensor],
        learning_rate: float,
        project: Callable[[], None] = lambda: None,
    ) -> None:
        """As many epochs as the settings give, Adam with a cosine schedule."""
        optimizer = torch.optim.Adam(parameters, lr=learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)
        for _ in range(self.epochs):
            self.run_epoch(loss, optimizer, project)
            schedule.step()
