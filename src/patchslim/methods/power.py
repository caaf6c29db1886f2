"""`power`: PoWER (Goyal et al., PoWER-BERT: Accelerating BERT Inference via Progressive Word-vector Elimination, ICML
2020) on patches."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from patchslim.hosts import Host, HostInfo
from patchslim.macs import host_macs
from patchslim.methods.base import Fitted, register
from patchslim.methods.knob import OneKnob, ReadoutOnly
from patchslim.methods.learn import Lessons, outputs_under, weighted
from patchslim.methods.task import Task
from patchslim.plan import make_plan, steps_by
from patchslim.recover.networks import Outputs
from patchslim.steps import Step
from patchslim.steps.power import Power as PowerStep
from patchslim.steps.power import significance

LEARNING_RATE = 0.05  # of the retention parameters, which begin at 1
PRICES = (1e-5, 1.0)  # λ in the first epoch and in the last
BLENDS = 400  # settings between two configurations
Counts = tuple[int, ...]


@register("power")
class Power(OneKnob):
    """PoWER: in each block the patches that receive the most attention stay, and the others leave.

    How many stay in each block is learnt on the images, without labels, at a price that rises from epoch to epoch.
    Take it for comparison.
    """

    epochs: Annotated[int, "over the images, in which the counts are learnt"] = 20
    readout_only: ReadoutOnly = False

    title: ClassVar[str] = "PoWER"

    def within(self, task: Task, ratio: float) -> Fitted:
        """Follow the path down to the budget; between two configurations, the first blend that fits. One way down
        serves every ratio."""
        info, budget = task.info, int(ratio * host_macs(task.info))
        macs, least = partial(self.macs, info), (1,) * info.depth
        task.first([least], macs, ratio, self.title)
        path = task.once(("power", self.epochs), lambda: RetentionPath(task, self.epochs))
        counts = path.counts
        while macs(counts[-1]) > budget and len(counts) <= self.epochs:
            path.step()
            task.progress({"event": "learning", "method": self.name, "patches_per_block": list(counts[-1])})
        reached = next((place for place, found in enumerate(counts) if macs(found) <= budget), len(counts))
        fewer = counts[reached] if reached < len(counts) else least
        found = task.first(between(counts[max(0, reached - 1)], fewer), macs, ratio, self.title)
        return Fitted(make_plan(info, self.steps(info, found)))

    def published(self, info: HostInfo, counts: Sequence[int]) -> list[Step]:
        """A configuration as steps."""
        return steps_by(info, lambda n, drop: PowerStep(n=n))(counts, ())


def soft_run(host: Host, images: Tensor, retention: Tensor) -> Outputs:
    """The network with soft-extract layers: the patch of rank k in block l counts by retention[l, k] from there on.

    A pre-norm block would undo a factor on the token itself; so it goes on the token's weight in attention, where 1 is
    as before and 0 is as if it were gone. retention (L, N).
    """
    prefix, x = host.info.prefix_tokens, host.embed(images)
    weight = x.new_ones(x.shape[:2])
    for layer, block in enumerate(host.blocks):
        seen: list[Tensor] = []
        x = host.math.attend(block, x, weighted(weight, seen))
        score = significance(seen[0].detach(), weight.detach())[:, prefix:]
        rank = score.argsort(dim=1, descending=True).argsort(dim=1)
        weight = torch.cat([weight[:, :prefix], weight[:, prefix:] * retention[layer][rank]], dim=1)
        x = host.math.feed(block, x)
    return outputs_under(host, x, weight)


def configuration(retention: Tensor) -> Counts:
    """Patches per block: ⌈Σ_k r_l[k]⌉, at least one, never more than the block before has: (L, N) → L numbers."""
    return tuple(accumulate((max(1, math.ceil(mass - 1e-4)) for mass in retention.sum(dim=1).tolist()), min))


class RetentionPath:
    """Retention parameters learnt at a price λ that rises from epoch to epoch, and the configurations on the way.

    The loss is the distance to the host's answers plus λ · Σ_l l · mass_l, mass_l = Σ_k r_l[k]. One way down
    serves every MAC ratio.
    """

    def __init__(self, task: Task, epochs: int) -> None:
        info = task.info
        self.lessons, self.epochs = Lessons(task, epochs), epochs
        self.retention = torch.ones(info.depth, info.patches, device=task.device, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.retention], lr=LEARNING_RATE)
        self.counts: list[Counts] = [(info.patches,) * info.depth]

    def step(self) -> None:
        """One epoch more. The price rises by one factor per epoch: the network is pressed together slowly, and every
        budget is passed on the way."""
        order = torch.arange(1, len(self.retention) + 1, device=self.retention.device)
        first, last = PRICES
        price = float(first * (last / first) ** ((len(self.counts) - 1) / max(1, self.epochs - 1)))

        def loss(host: Host, images: Tensor, taught: Outputs) -> Tensor:
            answers = self.lessons.distillation.compare(soft_run(host, images, self.retention), taught)
            return answers + price * (order * self.retention.sum(dim=1)).sum()

        self.lessons.run_epoch(loss, self.optimizer, [self.retention])
        found = configuration(self.retention.detach())
        self.counts.append(tuple(min(pair) for pair in zip(found, self.counts[-1], strict=True)))


def between(more: Counts, fewer: Counts) -> list[Counts]:
    """Configurations from one to another, evenly."""
    shares = [step / BLENDS for step in range(BLENDS + 1)]
    return [tuple(round(a + (b - a) * share) for a, b in zip(more, fewer, strict=True)) for share in shares]
