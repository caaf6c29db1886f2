"""What learns, how fast and how far it is: few images can set gains and biases anew, but move weights only a little."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from patchslim.errors import RecoverError
from patchslim.hosts import Host, open_slim
from patchslim.recover.config import RecoverConfig
from patchslim.slimmed import frozen_keys


def choose_learning_(student: Host, classifier: bool) -> list[nn.Parameter]:
    """Let everything learn but what the plan holds the fingerprint of, and, unless wanted, the classifier."""
    kept = set() if classifier else {id(parameter) for part in student.classifiers for parameter in part.parameters()}
    frozen = set(frozen_keys(student.model))
    for name, parameter in student.model.named_parameters():
        parameter.requires_grad_(name not in frozen and id(parameter) not in kept)
    return [parameter for parameter in student.model.parameters() if parameter.requires_grad]


def by_layer(model: nn.Module, config: RecoverConfig, vector_factor: float) -> list[dict[str, Any]]:
    """The optimiser's groups: weight decay for matrices, layer decay where asked for, vectors at their own rate."""
    if config.layer_decay < 1:
        if not hasattr(model, "group_matcher"):  # timm would take all for one layer
            raise RecoverError(f"layer_decay is for timm's models, not for {type(model).__name__}; leave it at 1.")
        groups = param_groups_layer_decay(model, config.weight_decay, layer_decay=config.layer_decay)
    else:
        groups = param_groups_weight_decay(model, config.weight_decay)
    scaled = []
    for group in groups:
        for vectors in (True, False):
            own = [parameter for parameter in group["params"] if is_vector(parameter) == vectors]
            scale = group.get("lr_scale", 1.0) * (vector_factor if vectors else 1.0)
            scaled += [group | {"params": own, "lr_scale": scale}] if own else []
    return scaled


def two_rates(parameters: Iterable[nn.Parameter], rate: float, vector_factor: float) -> list[dict[str, Any]]:
    """Vectors at a rate of their own, everything else at `rate`."""
    every = list(parameters)
    vectors, others = ([p for p in every if is_vector(p) == wanted] for wanted in (True, False))
    groups = [{"params": vectors, "lr": rate * vector_factor}, {"params": others, "lr": rate}]
    return [group for group in groups if group["params"]]


def is_vector(parameter: nn.Parameter) -> bool:
    """Gains of norms, LayerScale, biases."""
    return parameter.ndim <= 1


class TrainState:
    """What changes from epoch to epoch, as tensors and numbers that a checkpoint can hold."""

    def __init__(self, student: Host, config: RecoverConfig, epochs: int, steps: int, vector_factor: float) -> None:
        self.student = student
        self.optimizer: Any = create_optimizer_v2(
            by_layer(student.model, config, vector_factor),
            opt="adamw",
            lr=config.learning_rate,
            fused=next(student.model.parameters()).is_cuda,  # there a step in pieces is bound by launching them
        )
        self.total = epochs * steps
        self.schedule: Any = CosineLRScheduler(
            self.optimizer,
            t_initial=max(2, self.total),
            warmup_t=min(math.ceil(config.warmup * self.total), max(0, self.total - 1)),
            warmup_prefix=False,
            t_in_epochs=False,
        )
        self.average: Any = ModelEmaV3(student.model, decay=config.ema, use_warmup=True) if config.ema else None
        self.best: dict[str, Tensor] = _snapshot(student)
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
            self.best, self.best_loss, self.best_epoch, self.since = _snapshot(self.judged), loss, self.epoch, 0

    def numbers(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {name: getattr(self, name) for name in _NUMBERS}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is, under names that tell what it is."""
        found = named("model", self.student.model.state_dict()) | named("best", self.best)
        if self.average is not None:
            found |= named("average", self.average.module.state_dict())
        for index, state in self.optimizer.state_dict()["state"].items():
            found |= named(f"optimizer.{index}", state)
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
        shapes = [parameter.shape for group in self.optimizer.param_groups for parameter in group["params"]]
        for name, tensor in part(tensors, "optimizer").items():
            index, field = name.split(".", 1)
            if tensor.ndim and tensor.shape != shapes[int(index)]:  # a number counts steps
                raise ValueError(f"{name} is of another parameter")
            state.setdefault(int(index), {})[field] = tensor
        fresh = self.optimizer.state_dict()
        self.optimizer.load_state_dict({"state": state, "param_groups": fresh["param_groups"]})


_NUMBERS = ("epoch", "step", "since", "best_loss", "start_loss", "best_epoch")


def _snapshot(host: Host) -> dict[str, Tensor]:
    """A copy of a network's weights."""
    return {name: tensor.detach().clone() for name, tensor in host.model.state_dict().items()}


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under one name, as a checkpoint has them."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under one name."""
    return {key.removeprefix(f"{prefix}."): value for key, value in tensors.items() if key.startswith(f"{prefix}.")}
