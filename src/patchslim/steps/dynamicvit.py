"""`dynamicvit`: before the block, a small predictor says which n patches stay (Rao et al., NeurIPS 2021)."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.hosts import HostInfo
from patchslim.steps.base import Choosing, Runner, Work, register_step
from patchslim.steps.tokens import Tokens, pick


@register_step
class DynamicViT(Choosing):
    """The n patches that the predictor is surest of stay; with `prefix_only` the block then computes no patch."""

    takes_sizes: ClassVar[bool] = False
    kind: Literal["dynamicvit"] = "dynamicvit"
    prefix_only: bool = False

    def kept(self, entering: int) -> int:
        """As the plan says."""
        return 0 if self.prefix_only else self.n

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """The predictor's four linear layers on all patches that come in."""
        width, half, quarter = info.width, max(1, info.width // 2), max(1, info.width // 4)
        return entering * (width * width + width * half + half * quarter + 2 * quarter)

    def work(self, info: HostInfo, layer: int, entering: int, kept: int | None = None) -> Work:
        """The block reads only those that stay."""
        return super().work(info, layer, entering, kept)._replace(keys=info.prefix_tokens + self.n)


class KeepPredictor(nn.Module):
    """log π of keeping and dropping each patch, from its own features and the mean over patches still there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = width // 2  # features that stay the patch's own; the others are averaged
        self.enter = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        half, quarter = max(1, width // 2), max(1, width // 4)
        narrowing = (nn.Linear(width, half), nn.GELU(), nn.Linear(half, quarter), nn.GELU(), nn.Linear(quarter, 2))
        self.leave = nn.Sequential(*narrowing)

    def forward(self, patches: Tensor, there: Tensor | None = None) -> Tensor:
        """(B, t, d), and how much each patch is there (B, t), else all are → (B, t, 2), [..., 0] for keeping."""
        y = self.enter(patches)
        own, shared = y[..., : self.own], y[..., self.own :]
        if there is None:
            mean = shared.mean(dim=1, keepdim=True)
        else:
            mean = (shared * there[..., None]).sum(dim=1, keepdim=True) / there.sum(dim=1)[:, None, None].clamp_min(1)
        return F.log_softmax(self.leave(torch.cat([own, mean.expand(-1, y.shape[1], -1)], dim=2)), dim=-1)


class DynamicViTRunner(Runner, runs=DynamicViT):
    """Patches really go before the block computes anything."""

    part = "predictor"

    def __init__(self, step: DynamicViT, info: HostInfo, layer: int, entering: int) -> None:
        super().__init__(step, info, layer, entering)
        self.n, self.prefix_only = step.n, step.prefix_only
        self.predictor = KeepPredictor(info.width).requires_grad_(False)

    def forward(self, tokens: Tokens, block: Any) -> Tokens:
        """(B, p + t, d) → (B, p + n, d)."""
        rank = self.predictor(tokens.x[:, self.prefix :])[..., 0].float().argsort(dim=1, descending=True)
        kept = pick(tokens, rank[:, : self.n], self.prefix)
        x: Tensor = block.math.run(block, kept.x, self.prefix if self.prefix_only else kept.x.shape[1])
        return kept._replace(x=x)
