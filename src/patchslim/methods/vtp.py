"""`vtp`: Vision Transformer Pruning (Zhu et al., 2021): features of linear layers are pruned, and every patch stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from patchslim.errors import BudgetError
from patchslim.hosts import Host, HostInfo
from patchslim.macs import head_macs
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.learn import Lessons, check_epochs
from patchslim.methods.task import Task
from patchslim.recover.networks import Outputs, outputs

LEARNING_RATE = 0.02  # of the gates, which begin at 1
PRICE = 1e-4  # λ on the sum of the gates' magnitudes, the paper's
LINEAR = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")  # the layers whose input features have gates


@register("vtp")
@dataclass(frozen=True)
class VTP(Method):
    """VTP: gates on the features that enter each linear layer learn to be sparse, and features with small gates go.

    Every patch stays, so it gives a model without a plan; one threshold on all gates meets the MAC ratio.
    Take it for comparison.
    """

    epochs: Annotated[int, "over the images, in which the gates learn"] = 20

    plans: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epochs(self.epochs)

    def fit(self, task: Task) -> Fitted:
        """The lowest threshold that fits."""
        reason = unsuitable(task.host)
        if reason is not None:
            raise BudgetError(f"{reason}.")
        return task.meet(lambda ratio: self._at(task, ratio))

    def _at(self, task: Task, ratio: float) -> Fitted:
        gates = task.once(("vtp", self.epochs), lambda: learn_gates(task, self.epochs))
        cut = Cut(gates)
        ladder = range(len(cut.thresholds) + 1)
        removed = task.first(ladder, lambda own: vtp_macs(task.info, cut.widths(own)), ratio, "VTP")
        return self.narrowed(task, gates, cut.kept(removed))

    def narrowed(self, task: Task, gates: Gates, kept: list[list[Tensor]]) -> Fitted:
        """The host with these features of each linear layer, gates folded in."""
        host = task.fresh_host()
        for block, gate, own in zip(host.blocks, gates, kept, strict=True):
            narrow_(block, gate, own)
        widths = [Widths(*(len(features) for features in own)) for own in kept]
        model = host.slimmed_(host.blocks).eval()
        detail = {"features_per_block": [list(own) for own in widths]}
        return Fitted(model=model, macs=vtp_macs(host.info, widths), detail=detail)


class Gated(nn.Module):
    """A linear layer behind gates: X* = X diag(a)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.gate = nn.Parameter(torch.ones(linear.in_features, device=linear.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        return self.linear(x * self.gate)  # type: ignore[no-any-return]


class Narrow(nn.Module):
    """A linear layer that reads some of the features, their gates folded into its weight."""

    kept: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, kept: Tensor | None) -> None:
        """`kept`: the features to pick from the input; None where they arrive picked."""
        super().__init__()
        self.register_buffer("kept", kept, persistent=False)
        self.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        x = x if self.kept is None else x.index_select(-1, self.kept)
        return F.linear(x, self.weight, self.bias)


def unsuitable(host: Host) -> str | None:
    """Why VTP can't prune a host; None if it can."""
    for block in host.blocks:
        for name in LINEAR:
            try:
                layer = block.get_submodule(name)
            except AttributeError:
                layer = None
            if type(layer) is not nn.Linear:
                return f"VTP prunes blocks with the linear layers {', '.join(LINEAR)}, and {host.info.name} has others"
        mlp: Any = block.get_submodule("mlp")
        if type(mlp) is not Mlp or not isinstance(mlp.norm, nn.Identity):
            return f"VTP prunes a plain two-layer MLP, and {host.info.name} has another"
    return None


def put_(block: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of a block's own."""
    parent, _, child = name.rpartition(".")
    setattr(block.get_submodule(parent), child, layer)


Gates = list[list[Tensor]]  # by block and layer


def learn_gates(task: Task, epochs: int) -> Gates:
    """Gates learnt, the weights frozen, from the host's answers and an L1 penalty."""
    lessons = Lessons(task, epochs)
    gated = [[_gate_(block, name) for name in LINEAR] for block in lessons.host.blocks]
    gates = [layer.gate for own in gated for layer in own]

    def loss(host: Host, images: Tensor, taught: Outputs) -> Tensor:
        penalty = torch.stack([gate.abs().sum() for gate in gates]).sum()
        return lessons.distillation.compare(outputs(host, images), taught) + PRICE * penalty

    lessons.learn(loss, gates, LEARNING_RATE)
    return [[layer.gate.detach() for layer in own] for own in gated]


def _gate_(block: nn.Module, name: str) -> Gated:
    layer: Any = block.get_submodule(name)
    gated = Gated(layer)
    put_(block, name, gated)
    return gated


class Widths(NamedTuple):
    """Features that each linear layer of a block reads."""

    qkv: int
    proj: int
    fc1: int
    fc2: int


def vtp_macs(info: HostInfo, widths: Sequence[Widths]) -> int:
    """All tokens, narrower linear layers: fc1 makes no feature that fc2 does not read. Attention stays as it is."""
    total, n = info.embed_macs, info.tokens
    for shape, own in zip(info.blocks, widths, strict=True):
        attention = 3 * own.qkv * shape.attention_width + own.proj * shape.width
        mlp = own.fc1 * own.fc2 + own.fc2 * shape.width
        total += n * (attention + mlp) + 2 * n * n * shape.attention_width
    return total + head_macs(info, info.patches)


class Cut:
    """All gates in one order of magnitude, smallest first; every layer keeps its largest."""

    def __init__(self, gates: Gates) -> None:
        self.gates = [[gate.abs().cpu() for gate in own] for own in gates]
        flat = torch.cat([_without_largest(gate) for own in self.gates for gate in own])
        self.thresholds = flat.sort().values  # cutting at the k-th removes k + 1 features

    def kept(self, removed: int) -> list[list[Tensor]]:
        """Features of each layer that stay when the `removed` smallest go."""
        if not removed:
            return [[torch.arange(len(gate)) for gate in own] for own in self.gates]
        threshold = self.thresholds[removed - 1]
        return [[_above(gate, threshold) for gate in own] for own in self.gates]

    def widths(self, removed: int) -> list[Widths]:
        """How many."""
        return [Widths(*(len(features) for features in own)) for own in self.kept(removed)]


def _without_largest(gate: Tensor) -> Tensor:
    return gate.sort().values[:-1]


def _above(gate: Tensor, threshold: Tensor) -> Tensor:
    keep = gate > threshold
    keep[gate.argmax()] = True
    return keep.nonzero()[:, 0]


def narrow_(block: nn.Module, gates: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
    """Replace a block's four linear layers by narrower ones."""
    for name, gate, features in zip(LINEAR, gates, kept, strict=True):
        layer: Any = block.get_submodule(name)
        device = layer.weight.device
        own = features.to(device)
        weight, bias = (layer.weight * gate.to(device))[:, own], layer.bias
        if name == "mlp.fc1":
            inner = kept[3].to(device)  # all that fc2 reads
            weight, bias = weight[inner], None if bias is None else bias[inner]
        put_(block, name, Narrow(weight, bias, None if name == "mlp.fc2" else own))
