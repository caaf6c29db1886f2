"""DynamicViT (Rao et al., DynamicViT: Efficient Vision Transformers with Dynamic Token Sparsification, NeurIPS 2021):
before three blocks a small predictor says which patches stay; it learns by Gumbel-softmax and attention masking."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.data.views import seeded
from patchslim.hosts import Host, HostInfo
from patchslim.peers.blocks import WholeBlock, made_from, read_in
from patchslim.peers.counting import whole_macs
from patchslim.peers.fit import first_fitting, rates, stages, too_low
from patchslim.peers.learn import Lessons
from patchslim.peers.masked import outputs_under, weighted
from patchslim.peers.method import Cell, Job, Unreachable
from patchslim.recover.outputs import Outputs
from patchslim.slim.tokens import take

LEARNING_RATE = 1e-3
RATIO_WEIGHT, DISTILL_WEIGHT, TOKEN_WEIGHT = 2.0, 0.5, 0.5  # the paper's


class KeepPredictor(nn.Module):
    """log π of keeping and dropping each patch, from its own features and the mean over patches still there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = width // 2  # features that stay the patch's own; the others are averaged
        self.enter = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        widths = (width, max(1, width // 2), max(1, width // 4))
        self.leave = nn.Sequential(
            nn.Linear(widths[0], widths[1]),
            nn.GELU(),
            nn.Linear(widths[1], widths[2]),
            nn.GELU(),
            nn.Linear(widths[2], 2),
        )

    def forward(self, patches: Tensor, there: Tensor | None = None) -> Tensor:
        """(B, t, d), and how much each patch is there (B, t), else all are → (B, t, 2), [..., 0] for keeping."""
        y = self.enter(patches)
        own, shared = y[..., : self.own], y[..., self.own :]
        if there is None:
            mean = shared.mean(dim=1, keepdim=True)
        else:
            mean = (shared * there[..., None]).sum(dim=1, keepdim=True) / there.sum(dim=1)[:, None, None].clamp_min(1)
        return F.log_softmax(self.leave(torch.cat([own, mean.expand(-1, y.shape[1], -1)], dim=2)), dim=-1)


def predictor_macs(width: int, patches: int) -> int:
    """Four linear layers on every patch."""
    half, quarter = max(1, width // 2), max(1, width // 4)
    return patches * (width * width + width * half + half * quarter + 2 * quarter)


class Chooser(nn.Module):
    """Keeps the n patches that the predictor is surest of."""

    def __init__(self, n: int, prefix: int, predictor: KeepPredictor) -> None:
        super().__init__()
        self.n, self.prefix, self.keep = n, prefix, predictor

    def forward(self, x: Tensor) -> Tensor:
        """(B, p + t, d) → (B, p + n, d)."""
        patches = x[:, self.prefix :]
        rank = self.keep(patches)[..., 0].float().argsort(dim=1, descending=True)
        return torch.cat([x[:, : self.prefix], take(patches, rank[:, : self.n])], dim=1)


def counts_of(info: HostInfo, rate: float) -> list[int]:
    """Patches that every block computes: ⌊rate^k · N⌋ from the k-th stage on, at least one."""
    begins, left, counts = stages(info), info.patches, []
    for layer in range(1, info.depth + 1):
        if layer in begins:
            left = max(1, int(info.patches * rate ** (begins.index(layer) + 1)))
        counts.append(left)
    return counts


def dynamic_macs(info: HostInfo, rate: float, readout_only: bool = False) -> int:
    """The blocks with the patches they have, and the predictors."""
    counts = counts_of(info, rate)
    asked = [counts[layer - 2] for layer in stages(info)]  # patches in front of each predictor
    return whole_macs(info, counts, readout_only) + sum(predictor_macs(info.width, patches) for patches in asked)


class Masks:
    """The network of the training phase: patches are masked, not removed."""

    def __init__(self, info: HostInfo, predictors: dict[int, KeepPredictor], rate: float) -> None:
        self.info, self.predictors, self.rate = info, predictors, rate

    def run(self, host: Host, images: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Last tokens (B, p + N, d), how much each counts (B, p + N), and every stage's decisions (B, N)."""
        prefix, x = self.info.prefix_tokens, host.embed(images)
        weight, decisions = x.new_ones(x.shape[:2]), []
        for layer, block in enumerate(host.blocks, start=1):
            if layer in self.predictors:
                there = weight[:, prefix:]
                odds = self.predictors[layer](x[:, prefix:], there)
                kept = F.gumbel_softmax(odds, hard=True)[..., 0] * there  # what is gone stays gone
                decisions.append(kept)
                weight = torch.cat([weight[:, :prefix], kept], dim=1)
            x = host.math.feed(block, host.math.attend(block, x, weighted(weight)))
        return x, weight, decisions

    def ratio_loss(self, decisions: list[Tensor]) -> Tensor:
        """Squared distance of each image's share of kept patches from what the stage should keep, stages averaged."""
        wanted = [self.rate ** (stage + 1) for stage in range(len(decisions))]
        parts = [(kept.mean(dim=1) - share).square().mean() for kept, share in zip(decisions, wanted, strict=True)]
        return torch.stack(parts).mean()


def token_loss(tokens: Tensor, taught: Tensor, weight: Tensor) -> Tensor:
    """Relative squared error of kept tokens' last features: twice (B, n, d), (B, n) → ()."""
    kept = weight.detach()
    error = ((tokens - taught).square().sum(dim=2) * kept).sum()
    return error / (taught.square().sum(dim=2) * kept).sum().clamp_min(1e-12)


class DynamicViT:
    """One base keep rate ρ: ρ, ρ² and ρ³ of the patches stay after the three stages."""

    name = "dynamicvit"

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """The largest keep rate that fits, with predictors trained for it."""
        info = job.host.info

        def macs(rate: float) -> int:
            return dynamic_macs(info, rate, job.config.readout_only)

        if not stages(info):
            return Unreachable(f"DynamicViT prunes before later quarters of the blocks, and {info.name} has none")
        rate = first_fitting(rates(), macs, job.budget(ratio))
        if rate is None:
            return too_low(job, "DynamicViT", ratio, macs(rates()[-1]))
        return self.with_predictors(job, rate, train(job, rate))

    def with_predictors(self, job: Job, rate: float, predictors: dict[int, KeepPredictor]) -> Cell:
        """The network of the inference phase: patches really go."""
        host, info = job.fresh_host(), job.host.info
        counts = counts_of(info, rate)
        blocks = []
        for layer, block in enumerate(host.blocks, start=1):
            chooser = None
            if layer in predictors:
                chooser = Chooser(counts[layer - 1], info.prefix_tokens, predictors[layer])
            blocks.append(WholeBlock(block, host.math, before=chooser, read=read_in(job, layer)))
        macs = dynamic_macs(info, rate, job.config.readout_only)
        return Cell(made_from(host, blocks, macs), macs, {"keep_rate": rate, "patches_per_block": counts})


def train(job: Job, rate: float) -> dict[int, KeepPredictor]:
    """Predictors by stage, learnt with the backbone frozen."""
    info, lessons = job.host.info, Lessons(job)
    with seeded(job.config.seed):
        predictors = {layer: KeepPredictor(info.width).to(job.device) for layer in stages(info)}
    masks = Masks(info, predictors, rate)

    def loss(host: Host, images: Tensor, taught: Outputs) -> Tensor:
        x, weight, decisions = masks.run(host, images)
        answers = lessons.distillation.compare(outputs_under(host, x, weight), taught)
        token = token_loss(x, taught.inner, weight)
        return DISTILL_WEIGHT * answers + TOKEN_WEIGHT * token + RATIO_WEIGHT * masks.ratio_loss(decisions)

    parameters = [parameter for predictor in predictors.values() for parameter in predictor.parameters()]
    lessons.learn(loss, parameters, LEARNING_RATE)
    return {layer: predictor.requires_grad_(False).eval() for layer, predictor in predictors.items()}
