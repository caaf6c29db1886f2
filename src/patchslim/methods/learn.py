"""How methods learn what to remove: a few parameters, the host frozen, and the host's own answers as the target.

While it is learnt, what is to be removed only counts for less and less, by a weight.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.data.views import mix, seeded
from patchslim.hosts import Host
from patchslim.kernels.attention import Mix
from patchslim.methods.task import Task
from patchslim.recover import RecoverConfig
from patchslim.recover.losses import Distillation
from patchslim.recover.networks import Outputs, outputs

TINY = 1e-6
NOTHING = 1e-30  # added to weights that a pool reads: it may take their logarithm, or divide by their sum
Loss = Callable[[Host, Tensor, Outputs], Tensor]  # frozen host, images (B, C, H, W), what the host says of them → ()


class Lessons:
    """The calibration images in memory, and what the host says of them."""

    def __init__(self, task: Task, epochs: int) -> None:
        self.task, self.epochs = task, epochs
        self.host = task.fresh_host()
        self.host.model.requires_grad_(False)
        plain = RecoverConfig(seed=task.seed, temperature=1.0)  # as measured in docs/notebook
        self.distillation = Distillation(self.host, None, plain)
        self.batches = [images.to(task.device) for images, _ in task.images.batches(task.batch_size)]
        with torch.no_grad():
            self.taught = [outputs(self.host, images, self.host.info.depth) for images in self.batches]
        self.epoch = 0

    @torch.enable_grad()
    def run_epoch(self, loss: Loss, optimizer: torch.optim.Optimizer, shares: Sequence[Tensor] = ()) -> None:
        """One pass over all images, shuffled; `shares` are parameters that stay within 0 … 1."""
        self.epoch += 1
        generator = torch.Generator().manual_seed(mix(self.task.seed, self.epoch))
        with seeded(self.task.seed, self.epoch, device=self.task.device):
            for index in torch.randperm(len(self.batches), generator=generator).tolist():
                value = loss(self.host, self.batches[index], self.taught[index])
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                for share in shares:
                    share.data.clamp_(0.0, 1.0)

    def learn(self, loss: Loss, parameters: Sequence[Tensor], rate: float, shares: Sequence[Tensor] = ()) -> None:
        """As many epochs as the settings give, Adam with a cosine schedule."""
        optimizer = torch.optim.Adam(parameters, lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)
        for _ in range(self.epochs):
            self.run_epoch(loss, optimizer, shares)
            schedule.step()


def weighted(weight: Tensor, seen: list[Tensor] | None = None) -> Mix:
    """Attention in which a key counts by its weight in 0 … 1 (B, n); at 0 it is as if it were not there.

    A token always sees itself, so that rows of tokens nobody sees stay finite. The map (B, H, n, n) goes into `seen`.
    Unlike log(weight) on the logits this has a derivative at 0.
    """

    def mix(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
        logits = (q * scale @ k.transpose(-2, -1)).float()
        counted = weight[:, None, None, :].expand(-1, 1, q.shape[2], -1).clone()
        counted.diagonal(dim1=2, dim2=3).fill_(1.0)
        rows = (logits - logits.amax(dim=-1, keepdim=True).detach()).exp() * counted
        rows = rows / rows.sum(dim=-1, keepdim=True).clamp_min(TINY)
        if seen is not None:
            seen.append(rows)
        return F.dropout(rows.to(v.dtype), dropout) @ v

    return mix


def outputs_under(host: Host, tokens: Tensor, weight: Tensor) -> Outputs:
    """What a host says when tokens (B, n, d) count by their weight (B, n) where the head pools."""
    features = host.features(tokens, weight + NOTHING)
    if not host.info.reads_patches:
        return Outputs(host.logits(tokens), features)
    if host.info.readout == "class+auxiliary":  # its features are the logits already
        return Outputs(features, features)
    return Outputs(host.classifiers[0](features), features)
