"""`scop`: SCOP (Tang et al., SCOP: Scientific Control for Reliable Neural Network Pruning, NeurIPS 2020) on patches."""

import math
from typing import Annotated

import torch
from torch import Tensor

from patchslim.hosts import Host, HostInfo
from patchslim.methods.base import Fitted, register
from patchslim.methods.knob import OneKnob, ReadoutOnly
from patchslim.methods.learn import Lessons
from patchslim.methods.task import Task
from patchslim.plan import static_plan, static_steps
from patchslim.recover.networks import Outputs
from patchslim.steps import Step

LEARNING_RATE = 0.02  # of the shares β, which begin at one half
RIDGE = 1e-9  # on the covariance of patches, so that it can be inverted
SHRINK = 0.999  # of the largest distance that keeps the joint covariance positive


@register("scop")
class SCOP(OneKnob):
    """SCOP: a patch competes with its knockoff, a copy that no answer depends on; patches that the knockoff can stand
    in for leave, the same ones in all images.

    The shares of both are learnt on the images, without labels, and every block keeps the same rate.
    Take it for comparison.
    """

    epochs: Annotated[int, "over the images, in which the shares are learnt"] = 20
    readout_only: ReadoutOnly = False

    def published(self, info: HostInfo, rate: float) -> list[Step]:
        """The same rate in every block."""
        return static_steps(info, counts_of(info, rate), "slice")

    def at(self, task: Task, rate: float) -> Fitted:
        """The most important patches stay."""
        share = task.once(("scop", self.epochs), lambda: learn_shares(task, self.epochs))
        kept = kept_by(importance(share), counts_of(task.info, rate))
        plan = static_plan(task.info, [*kept[:-1], []] if self.reads_only(task.info) else kept)
        return Fitted(plan, detail={self.knob: rate})


class Knockoffs:
    """Second-order knockoffs (Candès et al., Panning for Gold, 2018): copies of patch features that correlate as the
    originals do, and with the originals as these do among themselves, but that no answer depends on.

    One covariance over patches serves all channels, each at unit scale: a few hundred images could not tell a
    covariance per channel.
    """

    def __init__(self, features: Tensor) -> None:
        """features (K, N, c): the patches of K images."""
        self.mean = features.double().mean(dim=0)
        centred = features.double() - self.mean
        self.scale = centred.square().mean(dim=(0, 1)).sqrt().clamp_min(1e-12)  # (c,)
        rows = (centred / self.scale).transpose(1, 2).flatten(0, 1)  # (K · c, N)
        covariance = rows.T @ rows / len(rows)
        deviation = covariance.diagonal().clamp_min(1e-12).sqrt()
        correlation = covariance / deviation / deviation[:, None]
        # The equicorrelated choice: the farthest from the originals that is the same for every patch.
        least = float(torch.linalg.eigvalsh(correlation)[0].clamp_min(1e-6))
        self.distance = min(1.0, 2 * least) * SHRINK * deviation.square()  # diag(s), (N,)
        self.covariance = covariance
        one = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        solved = torch.linalg.solve(covariance + RIDGE * one, torch.diag(self.distance))
        self.shift = one - solved  # I - Σ⁻¹ diag(s)
        spread = 2 * torch.diag(self.distance) - torch.diag(self.distance) @ solved
        values, vectors = torch.linalg.eigh((spread + spread.T) / 2)
        self.root = vectors * values.clamp_min(0.0).sqrt()

    def draw(self, features: Tensor) -> Tensor:
        """Knockoffs of (B, N, c), with torch's current random numbers."""
        rows = ((features.double() - self.mean) / self.scale).transpose(1, 2)  # (B, c, N)
        noise = torch.randn_like(rows)
        found = rows @ self.shift + noise @ self.root.T
        knockoffs: Tensor = found.transpose(1, 2) * self.scale + self.mean
        return knockoffs.to(features.dtype)


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

    lessons.learn(loss, [share], LEARNING_RATE, [share])
    return share.detach().cpu()


def counts_of(info: HostInfo, rate: float) -> list[int]:
    """The same rate in every block, of the patches that come in."""
    counts = [info.patches]
    for _ in range(info.depth):
        counts.append(max(1, math.ceil(rate * counts[-1])))
    return counts[1:]


def kept_by(scores: Tensor, counts: list[int]) -> list[list[int]]:
    """Each block keeps the most important of the patches that reach it: scores (L, N)."""
    alive, kept = list(range(scores.shape[1])), []
    for own, count in zip(scores.tolist(), counts, strict=True):
        alive = sorted(alive, key=lambda patch: (-own[patch], patch))[:count]
        kept.append(alive)
    return kept
