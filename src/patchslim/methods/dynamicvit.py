"""`dynamicvit`: DynamicViT (Rao et al., DynamicViT: Efficient Vision Transformers with Dynamic Token Sparsification,
NeurIPS 2021)."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.data.views import seeded
from patchslim.hosts import Host, HostInfo
from patchslim.methods.base import Fitted, register
from patchslim.methods.knob import OneKnob, ReadoutOnly, stages
from patchslim.methods.learn import Lessons, outputs_under, weighted
from patchslim.methods.task import Task
from patchslim.plan import make_plan
from patchslim.recover.networks import Outputs
from patchslim.steps import Step
from patchslim.steps.dynamicvit import DynamicViT as DynamicViTStep
from patchslim.steps.dynamicvit import KeepPredictor
from patchslim.steps.keep import Keep

LEARNING_RATE = 1e-3
RATIO_WEIGHT, DISTILL_WEIGHT, TOKEN_WEIGHT = 2.0, 0.5, 0.5  # the paper's
Predictors = dict[int, KeepPredictor]  # by block


@register("dynamicvit")
class DynamicViT(OneKnob):
    """DynamicViT: before three blocks a small predictor says which patches stay; with a base keep rate ρ, it is ρ, ρ²
    and ρ³ of them.

    The predictors learn by Gumbel-softmax and attention masking on the images, without labels, the host frozen.
    Take it for comparison.
    """

    epochs: Annotated[int, "over the images, in which the predictors learn"] = 20
    readout_only: ReadoutOnly = False

    def unsuitable(self, host: Host) -> str | None:
        """It needs blocks enough."""
        if stages(host.info):
            return None
        return f"DynamicViT prunes before later quarters of the blocks, and {host.info.name} has none"

    def at(self, task: Task, rate: float) -> Fitted:
        """Predictors trained for the rate."""
        return self.predicting(task, rate, train(task, rate, self.epochs))

    def predicting(self, task: Task, rate: float, predictors: Predictors) -> Fitted:
        """The network of the inference phase: patches really go."""
        plan = make_plan(task.info, self.steps(task.info, rate))
        return task.fitted(plan, predictors, detail={self.knob: rate})

    def published(self, info: HostInfo, rate: float) -> list[Step]:
        """⌊ρ^k · N⌋ patches from the k-th stage on, at least one."""
        steps: list[Step] = [Keep()] * info.depth
        for stage, layer in enumerate(stages(info), start=1):
            steps[layer - 1] = DynamicViTStep(n=max(1, int(info.patches * rate**stage)))
        return steps

    def last(self, step: Step) -> Step:
        """The predictor's choice still says what can be read."""
        return DynamicViTStep(n=step.n, prefix_only=True) if isinstance(step, DynamicViTStep) else super().last(step)


def masked_run(host: Host, images: Tensor, predictors: Predictors) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The network of the training phase, in which patches are masked, not removed: last tokens (B, p + N, d), how much
    each counts (B, p + N), and every stage's decisions (B, N)."""
    prefix, x = host.info.prefix_tokens, host.embed(images)
    weight, decisions = x.new_ones(x.shape[:2]), []
    for layer, block in enumerate(host.blocks, start=1):
        if layer in predictors:
            there = weight[:, prefix:]
            odds = predictors[layer](x[:, prefix:], there)
            kept = F.gumbel_softmax(odds, hard=True)[..., 0] * there  # what is gone stays gone
            decisions.append(kept)
            weight = torch.cat([weight[:, :prefix], kept], dim=1)
        x = host.math.feed(block, host.math.attend(block, x, weighted(weight)))
    return x, weight, decisions


def ratio_loss(decisions: list[Tensor], rate: float) -> Tensor:
    """Squared distance of each image's share of kept patches from what the stage should keep, stages averaged."""
    parts = [(kept.mean(dim=1) - rate**stage).square().mean() for stage, kept in enumerate(decisions, start=1)]
    return torch.stack(parts).mean()


def token_loss(tokens: Tensor, taught: Tensor, weight: Tensor) -> Tensor:
    """Relative squared error of kept tokens' last features: twice (B, n, d), (B, n) → ()."""
    kept = weight.detach()
    error = ((tokens - taught).square().sum(dim=2) * kept).sum()
    return error / (taught.square().sum(dim=2) * kept).sum().clamp_min(1e-12)


def train(task: Task, rate: float, epochs: int) -> Predictors:
    """Predictors by stage, learnt with the backbone frozen."""
    info, lessons = task.info, Lessons(task, epochs)
    with seeded(task.seed):
        predictors = {layer: KeepPredictor(info.width).to(task.device) for layer in stages(info)}

    def loss(host: Host, images: Tensor, taught: Outputs) -> Tensor:
        x, weight, decisions = masked_run(host, images, predictors)
        answers = lessons.distillation.compare(outputs_under(host, x, weight), taught)
        token = token_loss(x, taught.inner, weight)
        return DISTILL_WEIGHT * answers + TOKEN_WEIGHT * token + RATIO_WEIGHT * ratio_loss(decisions, rate)

    parameters = [parameter for predictor in predictors.values() for parameter in predictor.parameters()]
    lessons.learn(loss, parameters, LEARNING_RATE)
    return {layer: predictor.requires_grad_(False).eval() for layer, predictor in predictors.items()}
