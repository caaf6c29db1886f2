"""What learns, and how fast: few images can set gains and biases anew, but move weights only a little."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from patchslim.errors import RecoverError
from patchslim.hosts import Host
from patchslim.recover.config import RecoverConfig
from patchslim.slim import frozen_keys


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
