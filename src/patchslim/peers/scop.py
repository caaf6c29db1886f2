"""SCOP (Tang et al., SCOP: Scientific Control for Reliable Neural Network Pruning, NeurIPS 2020) on patches: a patch
competes with its knockoff, and one that its knockoff can stand in for goes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from patchslim.hosts import Host, HostInfo
from patchslim.macs import macs_of_counts, plan_macs
from patchslim.peers.fit import first_fitting, rates, too_low
from patchslim.peers.knockoffs import Knockoffs
from patchslim.peers.learn import Lessons
from patchslim.peers.method import Cell, Job, Unreachable
from patchslim.plan import make_plan
from patchslim.recover.outputs import Outputs
from patchslim.slim import apply

LEARNING_RATE = 0.02  # of the shares β, which begin at one half


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


def learn_shares(job: Job) -> Tensor:
    """β of every block and patch, the network frozen: (L, N) on the CPU."""
    lessons, info = Lessons(job), job.host.info
    prefix = info.prefix_tokens
    with torch.no_grad():
        features = torch.cat([lessons.host.embed(images)[:, prefix:] for images in lessons.batches])
    knockoffs = Knockoffs(features)
    share = torch.full((info.depth, info.patches), 0.5, device=job.device, requires_grad=True)

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


class Scop:
    """The same patches for every image."""

    name = "scop"

    def __init__(self) -> None:
        self.share: Tensor | None = None

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """The largest keep rate that fits."""
        info, only = job.host.info, job.config.readout_only

        def macs(rate: float) -> int:
            return macs_of_counts(info, counts_of(info, rate, only))

        rate = first_fitting(rates(), macs, job.budget(ratio))
        if rate is None:
            return too_low(job, "SCOP", ratio, macs(rates()[-1]))
        if self.share is None:
            self.share = learn_shares(job)
        counts = counts_of(info, rate, only)
        plan = make_plan(info, kept_by(importance(self.share), counts), provenance={"method": "SCOP"})
        slim = apply(job.host.model, plan)
        return Cell(slim, plan_macs(info, plan), {"keep_rate": rate, "patches_per_block": counts})
