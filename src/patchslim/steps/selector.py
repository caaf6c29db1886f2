"""The token selector: module G of the paper's dynamic variant, from a block's input to the log of each patch's score.

All kinds read the normalised input y = LN1(Z_{l-1}), which the block computes anyway.
"""

import math
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.hosts import HostInfo, Incoming
from patchslim.steps.reference import Seen

SelectorKind = Literal["context", "mlp", "pool"]
HIDDEN = 12  # the MLP's hidden layer is this many times narrower than the host: at most 1/144 of its MACs


class MlpSelector(nn.Module):
    """A two-layer MLP on every patch by itself."""

    def __init__(self, info: HostInfo, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(info.width, hidden), nn.Linear(hidden, 1)

    def start_at_(self, score: float) -> None:
        """Begin around this log score."""
        nn.init.constant_(self.fc2.bias, score)

    def forward(self, y: Tensor, place: Tensor | None = None) -> Tensor:
        """y (B, n, d) → log ŝ (B, n)."""
        score: Tensor = self.fc2(F.gelu(self.fc1(y)))
        return score[..., 0]


class ContextSelector(MlpSelector):
    """The same, told what the image's patches are like on average: a patch matters by what the others are."""

    def __init__(self, info: HostInfo, hidden: int) -> None:
        super().__init__(info, hidden)
        self.patches = info.patches
        self.context = nn.Linear(info.width, hidden, bias=False)

    def forward(self, y: Tensor, place: Tensor | None = None) -> Tensor:
        """y (B, n, d), place (B, n) → log ŝ (B, n). Rows whose place is N only fill up and are not averaged."""
        if place is None:
            mean = y.mean(dim=1, keepdim=True)
        else:
            real = (place < self.patches)[..., None]
            mean = (y * real).sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True).clamp_min(1)
        score: Tensor = self.fc2(F.gelu(self.fc1(y) + self.context(mean.to(y.dtype))))
        return score[..., 0]


class PoolSelector(nn.Module):
    """The paper's: pool the channels, a linear layer over the N patch positions, an activation."""

    def __init__(self, info: HostInfo, hidden: int) -> None:
        super().__init__()
        self.fc = nn.Linear(info.patches, info.patches)

    def start_at_(self, score: float) -> None:
        """Begin around this log score."""
        nn.init.constant_(self.fc.bias, math.log(math.expm1(math.exp(score))))

    def forward(self, y: Tensor, place: Tensor | None = None) -> Tensor:
        """y (B, n, d), place (B, n) → log ŝ (B, n). Patches that have left are zeros; place N is nowhere."""
        assert place is not None
        patches = self.fc.in_features
        pooled = y.new_zeros(y.shape[0], patches + 1).scatter(1, place, y.mean(dim=-1))[:, :patches]
        score = F.softplus(self.fc(pooled)).clamp_min(1e-12).log()  # ŝ is a share: positive
        return F.pad(score, (0, 1)).gather(1, place)


Selector = MlpSelector | ContextSelector | PoolSelector
SELECTORS: dict[SelectorKind, type[Selector]] = {"context": ContextSelector, "mlp": MlpSelector, "pool": PoolSelector}


def make_selector(info: HostInfo, kind: SelectorKind, hidden: int) -> Selector:
    """A fresh G for one block of a host; it learns only in a training of its own."""
    return SELECTORS[kind](info, hidden).requires_grad_(False)


def hidden_width(info: HostInfo, kind: SelectorKind) -> int:
    """The width of the hidden layer that a host gets."""
    return max(1, info.width // HIDDEN) if kind != "pool" else 0


def selector_macs(info: HostInfo, kind: SelectorKind, hidden: int, patches: int) -> int:
    """MACs of one G on `patches` patches."""
    if kind == "pool":
        return info.patches**2
    rows = patches + 1 if kind == "context" else patches  # the average patch is one more row
    return rows * info.width * hidden + patches * hidden


def told(seen: Seen, incoming: Incoming) -> dict[int, float]:
    """What a step's own G says of each living patch of one image, for the masked reference."""
    selector: Any = seen.own.selector
    y = incoming.y[:, seen.host.info.prefix_tokens :]
    score = selector(y, seen.x.new_tensor([seen.alive]).long())[0].tolist()
    return dict(zip(seen.alive, score, strict=True))
