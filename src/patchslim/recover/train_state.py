"""The state of a training in progress: weights, their moving average, the optimiser, the best so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor

from patchslim.hosts import Host, open_slim
from patchslim.recover.config import RecoverConfig
from patchslim.recover.groups import by_layer


class TrainState:
    """What changes from epoch to epoch, as tensors and numbers that a checkpoint can hold."""

    def __init__(
        self, student: Host, config: RecoverConfig, epochs: int, steps: int, vector_factor: float = 1.0
    ) -> None:
        self.student = student
        model = student.model
        on_gpu = next(model.parameters()).is_cuda
        self.optimizer: Any = create_optimizer_v2(
            by_layer(model, config, vector_factor),
            opt="adamw",
            lr=config.learning_rate,
            fused=on_gpu,  # there a step in pieces is bound by launching them
        )
        self.total = epochs * steps
        self.schedule: Any = CosineLRScheduler(
            self.optimizer,
            t_initial=max(2, self.total),
            warmup_t=min(math.ceil(config.warmup * self.total), max(0, self.total - 1)),
            warmup_prefix=False,
            t_in_epochs=False,
        )
        self.average: Any = ModelEmaV3(model, decay=config.ema, use_warmup=True) if config.ema else None
        self.best: dict[str, Tensor] = snapshot(student)
        self.epoch, self.step, self.since = 0, 0, 0
        self.best_loss, self.start_loss = math.inf, math.inf
        self.best_epoch = 0  # 0: the weights it started from

    def next_step(self) -> None:
        """Count a step and set its learning rate: the curve's at the middle of the step, so that none is zero."""
        self.step += 1
        self.schedule.step_update(self.step - 0.5)

    @property
    def judged(self) -> Host:
        """The network that held-out images judge: the moving average where there is one."""
        return self.student if self.average is None else open_slim(self.average.module, self.student.info)

    def judge(self, loss: float) -> None:
        """Note an epoch's loss on held-out images."""
        self.since += 1
        if loss < self.best_loss:
            self.best, self.best_loss, self.best_epoch, self.since = snapshot(self.judged), loss, self.epoch, 0

    def numbers(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {name: getattr(self, name) for name in _NUMBERS}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is, under names that tell what it is."""
        found = {f"model.{name}": tensor for name, tensor in self.student.model.state_dict().items()}
        found |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        if self.average is not None:
            found |= {f"average.{name}": tensor for name, tensor in self.average.module.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{index}.{name}": tensor for name, tensor in state.items()}
        return found

    def restore_(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go back to what a checkpoint holds."""
        for name in _NUMBERS:
            setattr(self, name, numbers[name])
        device = next(self.student.model.parameters()).device
        self.student.model.load_state_dict(part(tensors, "model"))
        self.best = {name: tensor.to(device) for name, tensor in part(tensors, "best").items()}
        if self.average is not None:
            self.average.module.load_state_dict(part(tensors, "average"))
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in part(tensors, "optimizer").items():
            index, field = name.split(".", 1)
            state.setdefault(int(index), {})[field] = tensor
        fresh = self.optimizer.state_dict()
        self.optimizer.load_state_dict({"state": state, "param_groups": fresh["param_groups"]})


_NUMBERS = ("epoch", "step", "since", "best_loss", "start_loss", "best_epoch")


def snapshot(host: Host) -> dict[str, Tensor]:
    """A copy of a network's weights."""
    return {name: tensor.detach().clone() for name, tensor in host.model.state_dict().items()}


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors under one name."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
