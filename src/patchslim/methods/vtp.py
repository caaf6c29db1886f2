"""`vtp`: Vision Transformer Pruning (Zhu et al., 2021): features of linear layers are pruned, and every patch stays."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from patchslim.hosts import Host, HostInfo
from patchslim.macs import head_macs
from patchslim.methods.base import Fitted, register
from patchslim.methods.knob import OneKnob
from patchslim.methods.learn import Lessons
from patchslim.methods.task import Task
from patchslim.recover.networks import Outputs, outputs

LEARNING_RATE = 0.02  # of the gates, which begin at 1
PRICE = 1e-4  # λ on the sum of the gates' magnitudes, the paper's
LINEAR = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")  # the layers whose input features have gates
Gates = list[list[Tensor]]  # by block and layer
Kept = list[list[Tensor]]  # likewise, numbers of features


@register("vtp")
class VTP(OneKnob):
    """VTP: gates on the features that enter each linear layer learn to be sparse, and features with small gates go.

    Every patch stays, so it gives a model without a plan; one threshold on all gates meets the MAC ratio.
    Take it for comparison.
    """

    epochs: Annotated[int, "over the images, in which the gates learn"] = 20

    plans: ClassVar[bool] = False

    def unsuitable(self, host: Host) -> str | None:
        """It needs plain linear layers under timm's names."""
        for block in host.blocks:
            layers = dict(block.named_modules())
            if any(type(layers.get(name)) is not nn.Linear for name in LINEAR):
                return f"VTP prunes blocks with the linear layers {', '.join(LINEAR)}, and {host.info.name} has others"
            mlp: Any = layers["mlp"]
            if type(mlp) is not Mlp or not isinstance(mlp.norm, nn.Identity):
                return f"VTP prunes a plain two-layer MLP, and {host.info.name} has another"
        return None

    def within(self, task: Task, ratio: float) -> Fitted:
        """The lowest threshold that fits."""
        gates = task.once(("vtp", self.epochs), lambda: learn_gates(task, self.epochs))
        cut = Cut(gates)
        ladder = range(len(cut.thresholds) + 1)
        removed = task.first(ladder, lambda own: vtp_macs(task.info, widths(cut.kept(own))), ratio, self.title)
        return self.narrowed(task, gates, cut.kept(removed))

    def narrowed(self, task: Task, gates: Gates, kept: Kept) -> Fitted:
        """The host with these features of each linear layer, gates folded in."""
        host = task.fresh_host()
        for block, gate, own in zip(host.blocks, gates, kept, strict=True):
            narrow_(block, gate, own)
        model, read = host.slimmed_(host.blocks).eval(), widths(kept)
        return Fitted(model=model, macs=vtp_macs(host.info, read), detail={"features_per_block": read})


class Gated(nn.Module):
    """A linear layer behind gates: X* = X diag(a)."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.linear: nn.Linear = linear
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


def learn_gates(task: Task, epochs: int) -> Gates:
    """Gates learnt, the weights frozen, from the host's answers and an L1 penalty."""
    lessons = Lessons(task, epochs)
    gates: Gates = []
    for block in lessons.host.blocks:
        layers = {name: Gated(block.get_submodule(name)) for name in LINEAR}
        for name, layer in layers.items():
            block.set_submodule(name, layer)
        gates.append([layer.gate for layer in layers.values()])
    every = [gate for own in gates for gate in own]

    def loss(host: Host, images: Tensor, taught: Outputs) -> Tensor:
        penalty = torch.stack([gate.abs().sum() for gate in every]).sum()
        return lessons.distillation.compare(outputs(host, images), taught) + PRICE * penalty

    lessons.learn(loss, every, LEARNING_RATE)
    return [[gate.detach() for gate in own] for own in gates]


def widths(kept: Kept) -> list[list[int]]:
    """How many features each linear layer of each block reads."""
    return [[len(features) for features in own] for own in kept]


def vtp_macs(info: HostInfo, read: Sequence[Sequence[int]]) -> int:
    """All tokens, narrower linear layers: fc1 makes no feature that fc2 does not read. Attention stays as it is."""
    total, n = info.embed_macs, info.tokens
    for shape, (qkv, proj, fc1, fc2) in zip(info.blocks, read, strict=True):
        attention = 3 * qkv * shape.attention_width + proj * shape.width
        mlp = fc1 * fc2 + fc2 * shape.width
        total += n * (attention + mlp) + 2 * n * n * shape.attention_width
    return total + head_macs(info, info.patches)


class Cut:
    """All gates in one order of magnitude, smallest first; every layer keeps its largest."""

    def __init__(self, gates: Gates) -> None:
        self.gates = [[gate.abs().cpu() for gate in own] for own in gates]
        flat = torch.cat([gate.sort().values[:-1] for own in self.gates for gate in own])
        self.thresholds = flat.sort().values  # cutting at the k-th removes k + 1 features

    def kept(self, removed: int) -> Kept:
        """Features of each layer that stay when the `removed` smallest go."""
        threshold = float(self.thresholds[removed - 1]) if removed else -1.0
        every = [[(gate > threshold).index_fill(0, gate.argmax(), True) for gate in own] for own in self.gates]
        return [[keep.nonzero()[:, 0] for keep in own] for own in every]


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
        block.set_submodule(name, Narrow(weight, bias, None if name == "mlp.fc2" else own))
