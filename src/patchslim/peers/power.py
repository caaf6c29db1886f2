"""PoWER (Goyal et al., PoWER-BERT: Accelerating BERT Inference via Progressive Word-vector Elimination, ICML 2020) on
patches: those that receive the most attention stay; how many, every block learns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.hosts import Host, HostInfo
from patchslim.hosts.attention import Mix
from patchslim.peers.blocks import HalfwayBlock, Halving, made_from, read_in
from patchslim.peers.counting import halfway_macs
from patchslim.peers.fit import first_fitting
from patchslim.peers.learn import Lessons, price_of
from patchslim.peers.masked import outputs_under, weighted
from patchslim.peers.method import Cell, Job, Unreachable
from patchslim.recover.outputs import Outputs
from patchslim.slim.tokens import Tokens, pick

LEARNING_RATE = 0.05  # of the retention parameters, which begin at 1
PRICES = (1e-5, 1.0)  # λ in the first epoch and in the last
BLENDS = 400  # settings between two configurations
Counts = tuple[int, ...]


def significance(maps: Tensor, rows: Tensor | None = None) -> Tensor:
    """The attention that each token receives, over all heads and rows: (B, H, n, n) → (B, n).

    `rows` (B, n) says how much each row counts, where some stand for tokens that are gone.
    """
    if rows is not None:
        maps = maps * rows[:, None, :, None]
    return maps.sum(dim=(1, 2))


class Extract(Halving):
    """The n most significant patches stay. The whole map is read, so attention can't be fused here."""

    def __init__(self, n: int, prefix: int) -> None:
        super().__init__()
        self.n, self.prefix = n, prefix

    def mix(self, size: Tensor | None, seen: list[Tensor]) -> Mix:
        """Attention with its map at hand."""

        def look(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float, fused: bool) -> Tensor:
            rows = (q * scale @ k.transpose(-2, -1)).softmax(dim=-1)
            seen.append(significance(rows))
            return F.dropout(rows, dropout) @ v

        return look

    def forward(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """(B, p + t, d) → (B, p + n, d)."""
        rank = seen[:, self.prefix :].float().argsort(dim=1, descending=True)
        return pick(tokens, rank[:, : self.n], self.prefix)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"n={self.n}"


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
    counts: list[int] = []
    for mass in retention.sum(dim=1).tolist():
        counts.append(min([max(1, math.ceil(mass - 1e-4)), *counts[-1:]]))
    return tuple(counts)


class RetentionPath:
    """Retention parameters learnt at a price λ that rises from epoch to epoch, and the configurations on the way.

    The loss is the distance to the host's answers plus λ · Σ_l l · mass_l, mass_l = Σ_k r_l[k]. One way down
    serves every MAC ratio.
    """

    def __init__(self, job: Job) -> None:
        info = job.host.info
        self.lessons, self.epochs = Lessons(job), job.config.epochs
        self.retention = torch.ones(info.depth, info.patches, device=job.device, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.retention], lr=LEARNING_RATE)
        self.counts: list[Counts] = [(info.patches,) * info.depth]

    def step(self) -> None:
        """One epoch more."""
        order = torch.arange(1, len(self.retention) + 1, device=self.retention.device)
        price = price_of(len(self.counts), self.epochs, *PRICES)

        def loss(host: Host, images: Tensor, taught: Outputs) -> Tensor:
            answers = self.lessons.distillation.compare(soft_run(host, images, self.retention), taught)
            return answers + price * (order * self.retention.sum(dim=1)).sum()

        self.lessons.run_epoch(loss, self.optimizer, self._project)
        found = configuration(self.retention.detach())
        self.counts.append(tuple(min(pair) for pair in zip(found, self.counts[-1], strict=True)))

    @torch.no_grad()
    def _project(self) -> None:
        self.retention.clamp_(0.0, 1.0)


def between(more: Counts, fewer: Counts) -> list[Counts]:
    """Configurations from one to another, evenly."""
    shares = [step / BLENDS for step in range(BLENDS + 1)]
    return [tuple(round(a + (b - a) * share) for a, b in zip(more, fewer, strict=True)) for share in shares]


def power_macs(info: HostInfo, counts: Sequence[int], readout_only: bool = False) -> int:
    """Queries of all tokens, the MLP of those left; reading the map costs additions only."""
    return halfway_macs(info, counts, lambda layer, n_in, n: 0, readout_only)


class Power:
    """Learned counts, each image's own patches."""

    name = "power"

    def __init__(self) -> None:
        self.path: RetentionPath | None = None

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """Follow the path down to the budget; between two configurations, the first blend that fits."""
        info, budget = job.host.info, job.budget(ratio)

        def macs(counts: Counts) -> int:
            return power_macs(info, counts, job.config.readout_only)

        least = (1,) * info.depth
        if macs(least) > budget:
            return Unreachable(f"PoWER takes at least {macs(least) / job.budget(1.0):.3f} of the MACs")
        if self.path is None:
            self.path = RetentionPath(job)
        counts = self.path.counts
        while macs(counts[-1]) > budget and len(counts) <= job.config.epochs:
            self.path.step()
            job.listen({"event": "learning", "method": self.name, "patches_per_block": list(counts[-1])})
        reached = next((place for place, found in enumerate(counts) if macs(found) <= budget), len(counts))
        fewer = counts[reached] if reached < len(counts) else least
        found = first_fitting(between(counts[max(0, reached - 1)], fewer), macs, budget)
        assert found is not None
        return self.with_counts(job, found)

    def with_counts(self, job: Job, counts: Sequence[int]) -> Cell:
        """PoWER with a configuration given."""
        host, info = job.fresh_host(), job.host.info
        above, blocks = [info.patches, *counts], []
        for layer, block in enumerate(host.blocks, start=1):
            read = read_in(job, layer)
            goes = above[layer] < above[layer - 1] and not read
            reduce = Extract(above[layer], info.prefix_tokens) if goes else None
            blocks.append(HalfwayBlock(block, host.math, reduce, read=read, last=layer == info.depth))
        macs = power_macs(info, counts, job.config.readout_only)
        return Cell(made_from(host, blocks, macs), macs, {"patches_per_block": list(counts)})
