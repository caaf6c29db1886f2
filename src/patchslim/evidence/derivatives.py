"""Derivatives of what the head reads in gates on the patches, of a host as it is slimmed so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from patchslim.evidence.features import Features
from patchslim.evidence.network import sort_tokens
from patchslim.evidence.taylor import probes, removal_effect
from patchslim.hosts import Host, HostInfo
from patchslim.kernels.attention import plain, sized

MAP_BYTES = 2**31  # for the attention maps that a backward pass needs
SCORE_PROBES = 16  # random directions per image where the score is of each image, and nothing averages
TINY = 1e-30
LEAST = 1e-8  # of a share: where the head takes a maximum, some patches have none at all


def read_blocks(info: HostInfo) -> int:
    """How many blocks, from the first on, compute patches that anybody reads."""
    return info.depth if info.reads_patches else info.depth - 1


def images_at_once(info: HostInfo) -> int:
    """How many images a backward pass through the whole host can take."""
    return max(1, MAP_BYTES // (16 * info.heads * info.tokens**2 * info.depth))


class GateDerivatives:
    """J of one host on some images."""

    def __init__(self, host: Host, features: Features, seed: int) -> None:
        self.host, self.info, self.features, self.seed = host, host.info, features, seed
        self.blocks, self.chunk = read_blocks(host.info), images_at_once(host.info)

    def batches(self, exits: Tensor, count: int, stage: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(J (B, blocks, N, count), r (B, count)) of every batch, where patch i is computed up to block `exits[i]`.

        r is how far the readout is from the host's by now, along the same probes; J is 0 for patches that are gone.
        """
        generator = torch.Generator().manual_seed(self.seed * 1000 + stage)
        order = exits.argsort(descending=True, stable=True)
        counts = [int((exits >= block).sum()) for block in range(1, self.blocks + 1)]
        self.features.focus((0, self.info.depth))
        for batch in self.features.batches(0, self.info.depth):
            for x, out in zip(*(part.split(self.chunk) for part in batch), strict=True):
                yield self._of(x, self.host.features(out).flatten(1).float(), order, counts, count, generator)

    def log_scores(self) -> Tensor:
        """log of the effect of removing each patch from each block on, shares of one: (images, depth, N) on the CPU."""
        info, found = self.info, []
        everything = torch.full((info.patches,), self.blocks)
        for jacobian, _ in self.batches(everything, SCORE_PROBES, 0):
            effect = removal_effect(jacobian).clamp_min(TINY)
            scores = torch.zeros(len(effect), info.depth, info.patches)
            scores[:, : self.blocks] = (effect / effect.sum(dim=2, keepdim=True)).clamp_min(LEAST).log().cpu()
            found.append(scores)
        return torch.cat(found)

    def _of(
        self, x: Tensor, reference: Tensor, order: Tensor, counts: Sequence[int], count: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """x = Z_0 (B, p + N, d), reference (B, F)."""
        order = order.to(x.device)
        x = sort_tokens(x, order.expand(len(x), -1), self.info.prefix_tokens)
        gates = [x.new_ones(len(x), kept).requires_grad_() for kept in counts]
        directions = probes(reference, count, generator)
        with torch.enable_grad():
            read = self._readout(x, gates)
            along = torch.einsum("bf,bfk->bk", read.float(), directions)
            parts = [torch.autograd.grad(along[:, k].sum(), gates, retain_graph=k + 1 < count) for k in range(count)]
        jacobian = x.new_zeros(len(x), self.blocks, self.info.patches, count, dtype=torch.float32)
        for block, kept in enumerate(counts):
            own = torch.stack([part[block] for part in parts], dim=-1).float()  # (B, kept, count)
            jacobian[:, block, order[:kept]] = own
        return jacobian, torch.einsum("bf,bfk->bk", read.detach().float() - reference, directions)

    def _readout(self, x: Tensor, gates: Sequence[Tensor]) -> Tensor:
        """What the head reads when patches count as their gates say: sorted tokens (B, p + N, d) → (B, F)."""
        prefix, math = self.info.prefix_tokens, self.host.math
        for layer, block in enumerate(self.host.blocks, start=1):
            kept = gates[layer - 1].shape[1] if layer <= self.blocks else 0
            mix = plain if layer == 1 else sized(_with_prefix(gates[layer - 2], prefix))
            x = math.compute(block, x[:, : prefix + kept], math.read(block, x), mix)
        weight = _with_prefix(gates[-1], prefix) if self.info.reads_patches else None
        return self.host.features(x, weight).flatten(1)


def _with_prefix(gate: Tensor, prefix: int) -> Tensor:
    """(B, n) → (B, p + n): prefix tokens always count."""
    return torch.cat([gate.new_ones(len(gate), prefix), gate], dim=1)
