"""Taylor importance: what removing patches does to what the head reads, to first order.

A gate on a patch multiplies its weight in every attention row, and in the pool, that reads it. J holds the derivatives
of the readout in the gates, of a host as it is slimmed so far; taking a patch away from a block on closes its gates
there and in all later blocks.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from patchslim.evidence.features import Features
from patchslim.evidence.network import sort_tokens
from patchslim.hosts import Host, HostInfo
from patchslim.kernels.attention import plain, sized

TRUST = 0.5  # in cross terms between removals; docs/notebook/decisions.md
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


def probes(features: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random directions of each image's own: features (B, F) → (B, F, count), with E‖Qᵀv‖² = ‖v‖² / ‖features‖².

    A squared length along a few random directions is that of the whole vector on average, and over many images the
    noise averages out; so J takes `count` backward passes, not one for every feature.
    """
    drawn = torch.randn(*features.shape, count, generator=generator).to(features)
    scale = features.square().sum(dim=1).clamp_min(1e-30).rsqrt() / count**0.5
    along: Tensor = drawn * scale[:, None, None]
    return along


def gradients(read: Tensor, directions: Tensor, inputs: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Of the readout (B, F) along each of the directions (B, F, K): K times the gradients in all inputs."""
    along = torch.einsum("bf,bfk->bk", read.float(), directions).sum(dim=0)
    return [torch.autograd.grad(one, inputs, retain_graph=k + 1 < len(along)) for k, one in enumerate(along)]


def removal_effect(jacobian: Tensor) -> Tensor:
    """‖Σ_{k≥l} J_{k,i}‖²: what removing patch i from block l on does. (B, blocks, N, K) → (B, blocks, N)."""
    return jacobian.flip(1).cumsum(dim=1).flip(1).square().sum(dim=-1)


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
        order = exits.argsort(descending=True, stable=True).to(self.features.device)
        counts = [int((exits >= block).sum()) for block in range(1, self.blocks + 1)]
        self.features.focus((0, self.info.depth))
        for batch in self.features.batches(0, self.info.depth):
            for x, out in zip(*(part.split(self.chunk) for part in batch), strict=True):
                reference = self.host.features(out).flatten(1).float()
                directions = probes(reference, count, generator)
                gates = [x.new_ones(len(x), kept).requires_grad_() for kept in counts]
                with torch.enable_grad():
                    read = self._readout(sort_tokens(x, order.expand(len(x), -1), self.info.prefix_tokens), gates)
                    parts = gradients(read, directions, gates)
                jacobian = x.new_zeros(len(x), self.blocks, self.info.patches, count, dtype=torch.float32)
                for block, kept in enumerate(counts):  # each with (B, kept, count)
                    jacobian[:, block, order[:kept]] = torch.stack([part[block] for part in parts], dim=-1).float()
                yield jacobian, torch.einsum("bf,bfk->bk", read.detach().float() - reference, directions)

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

    def _readout(self, x: Tensor, gates: Sequence[Tensor]) -> Tensor:
        """What the head reads when patches count as their gates say: sorted tokens (B, p + N, d) → (B, F)."""
        prefix, math = self.info.prefix_tokens, self.host.math
        weights = [torch.cat([gate.new_ones(len(gate), prefix), gate], dim=1) for gate in gates]  # prefix tokens count
        for layer, block in enumerate(self.host.blocks, start=1):
            tokens = weights[layer - 1].shape[1] if layer <= self.blocks else prefix
            mix = plain if layer == 1 else sized(weights[layer - 2])
            x = math.compute(block, x[:, :tokens], math.read(block, x), mix)
        return self.host.features(x, weights[-1] if self.info.reads_patches else None).flatten(1)


class Removal:
    """Which patch to remove next: the one whose removal changes the readout least per MAC saved.

    The change of the readout is taken as linear in the gates, so that ‖r − Σ J_u‖² sees redundancy: patches that say
    the same can't all go, and effects that cancel may. Cross terms count by `trust` only: sums of many
    first-order changes are less true than each of them. jacobian (blocks, N, R): R probes of all images; residual (R,).
    """

    def __init__(self, jacobian: Tensor, residual: Tensor, trust: float = TRUST) -> None:
        self.trust = trust
        self.blocks, self.patches, _ = jacobian.shape
        self.rows = jacobian.flatten(0, 1)
        self.norms = self.rows.square().sum(dim=1)
        self.slope = self.rows @ residual

    def best(self, exits: Tensor, saved: Tensor) -> int:
        """exits (N,): the last block that computes each patch; saved (blocks + 1,): MACs that one patch less in a block
        saves, 0 where none may go."""
        unit = (exits - 1).clamp_min(0) * self.patches + torch.arange(self.patches, device=exits.device)
        gain = saved[exits]
        change = (self.norms[unit] - 2 * self.trust * self.slope[unit]) / gain.clamp_min(1.0)
        return int(change.masked_fill((exits < 1) | (gain <= 0), torch.inf).argmin())

    def remove(self, patch: int, block: int) -> None:
        """Patch `patch` is no longer computed in block `block` (from 1)."""
        self.slope -= self.rows @ self.rows[(block - 1) * self.patches + patch]
