"""`scop`: SCOP (Tang et al., SCOP: Scientific Control for Reliable Neural Network Pruning, NeurIPS 2020) on patches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from patchslim.hosts import Host, HostInfo
from patchslim.macs import steps_macs
from patchslim.methods.base import Fitted, Method, register
from patchslim.methods.knockoffs import Knockoffs
from patchslim.methods.learn import Lessons, check_epochs
from patchslim.methods.rates import rates
from patchslim.methods.task import Task
from patchslim.plan import static_plan, static_steps
from patchslim.recover.networks import Outputs

LEARNING_RATE = 0.02  # of the shares β, which begin at one half


@register("scop")
@dataclass(frozen=True)
class SCOP(Method):
    """SCOP: a patch competes with its knockoff, a copy that no answer depends on; patches that the knockoff can stand
    in for leave, the same ones in all images.

    The shares of both are learnt on the images, without labels, and every block keeps the same rate.
    Take it for comparison.
    """

    epochs: Annotated[int, "over the images, in which the shares are learnt"] = 20
    readout_only: Annotated[bool, "the last block computes only what the head reads"] = False

    def __post_init__(self) -> None:
        check_epochs(self.epochs)

    def fit(self, task: Task) -> Fitted:
        """The largest keep rate that fits."""
        return task.meet(lambda ratio: self._at(task, ratio))

    def _at(self, task: Task, ratio: float) -> Fitted:
        info, only = task.info, self.readout_only

        def macs(rate: float) -> int:
            return steps_macs(info, static_steps(info, counts_of(info, rate, only), "slice"))

        rate = task.first(rates(), macs, ratio, "SCOP")
        share = task.once(("scop", self.epochs), lambda: learn_shares(task, self.epochs))
        plan = static_plan(info, kept_by(importance(share), counts_of(info, rate, only)))
        return Fitted(plan, detail={"keep_rate": rate})


def mixed_run(host: Host, images: Tensor, knockoffs: Knockoffs, share: Tensor) -> Outputs:
    """The network with selection layers: after block l patch i is β·real + (1 - β)·knockoff, β = share[l, i] (L, N).

    Knockoffs of the embedded patches run through the same blocks beside the real ones, never mixed themselves.
    """
    prefix, x = host.info.prefix_tokens, host.embed(images)
    other = torch.cat([x[:, :prefix], knockoffs.draw(x[:, prefix:])], dim=1)
    for layer, block in enumerate(host.blocks):
        both = block(torch.cat([x, other]), None)
        x, other = both.chunk(2)
        beta = share[layer][:, None]
        patches = beta * x[:, prefix:] + (1 - beta) * other[:, prefix:]
        x = torch.cat([x[:, :prefix], patches], dim=1)
    return Outputs(host.logits(x), host.features(x))


def importance(share: Tensor) -> Tensor:
    """β - β̃ with β̃ = 1 - β: above 0 the real patch was worth more than its control."""
    return 2 * share - 1


def learn_shares(task: Task, epochs: int) -> Tensor:
    """β of every block and patch, the network frozen: (L, N) on the CPU."""
    lessons, info = Lessons(task, epochs), task.info
    prefix = info.prefix_tokens
    with torch.no_grad():
        features = torch.cat([lessons.host.embed(images)[:, prefix:] for images in lessons.batches])
    knockoffs = Knockoffs(features)
    share = torch.full((info.depth, info.patches), 0.5, device=task.device, requires_grad=True)

    def loss(host: Host, images: Tensor, taught: Outputs) -> Tensor:
        return lessons.distillation.compare(mixed_run(host, images, knockoffs, share), taught)

    @torch.no_grad()
    def project() -> None:
        share.clamp_(0.0, 1.0)

    lessons.learn(loss, [share], LEARNING_RATE, project)
    return share.detach().cpu()


def counts_of(info: HostInfo, rate: float, readout_only: bool) -> list[int]:
    """The same rate in every block, of the patches that come in."""
    left, counts = info.patches, []
    for _ in range(info.depth):
        left = max(1, math.ceil(rate * left))
        counts.append(left)
    return [*counts[:-1], 0] if readout_only and not info.reads_patches else counts


def kept_by(scores: Tensor, counts: list[int]) -> list[list[int]]:
    """Each block keeps the most important of the patches that reach it: scores (L, N)."""
    alive, kept = list(range(scores.shape[1])), []
    for own, count in zip(scores.tolist(), counts, strict=True):
        alive = sorted(alive, key=lambda patch: (-own[patch], patch))[:count]
        kept.append(alive)
    return kept
