"""The network half-way through a top-down search: blocks above l are slimmed and tuned, the others are the host's."""

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor, nn

from patchslim.hosts import Host


@dataclass
class Partial:
    """A plan in the making, on sorted tokens.

    `order` lists all patches, those that stay longest first; block `k` above l computes the first `counts[k]` of
    them. `errors[k]` is the E_{k+1} it was decided with; `tuned` holds blocks whose weights are no longer the host's.
    """

    order: list[int]
    counts: dict[int, int] = field(default_factory=dict)
    errors: dict[int, float] = field(default_factory=dict)
    tuned: dict[int, nn.Module] = field(default_factory=dict)

    def extended(self, layer: int, order: list[int], count: int, error: float, tuned: nn.Module | None) -> Self:
        """The same with block `layer` decided."""
        blocks = self.tuned if tuned is None else self.tuned | {layer: tuned}
        return type(self)(order, self.counts | {layer: count}, self.errors | {layer: error}, blocks)

    def key(self) -> tuple[int, ...]:
        """The counts above, first block first: with one score and one seed they determine everything else."""
        return tuple(self.counts[layer] for layer in sorted(self.counts))


class Network:
    """Runs single blocks of a host on sorted tokens, slimmed as a `Partial` says."""

    def __init__(self, host: Host, carry: bool = False) -> None:
        self.host, self.info, self.carry = host, host.info, carry

    def block(self, partial: Partial, layer: int) -> nn.Module:
        """Block `layer` (1 … L), tuned where it was."""
        return partial.tuned.get(layer) or self.host.blocks[layer - 1]

    def sort(self, x: Tensor, order: list[int], count: int | None = None) -> Tensor:
        """Prefix tokens, then the first `count` patches of `order`: (B, p + N, d) → (B, p + count, d)."""
        prefix = self.info.prefix_tokens
        index = list(range(prefix)) + [prefix + patch for patch in order[:count]]
        return x.index_select(1, torch.tensor(index, device=x.device))

    def run(self, block: nn.Module, x: Tensor, count: int) -> Tensor:
        """A slimmed block on sorted tokens that computes `count` patches."""
        return self.host.math.run(block, x, self.info.prefix_tokens + count, self.carry)

    def next_output(self, partial: Partial, layer: int, x: Tensor) -> Tensor:
        """What E_{l+1} compares, from the sorted output of block `layer`: rows of block l+1, or the readout."""
        if layer == self.info.depth:
            return self.host.features(x)
        count = partial.counts[layer + 1]
        out = self.run(self.block(partial, layer + 1), x, count)
        return out[:, : self.info.prefix_tokens + count]

    def reference(self, partial: Partial, layer: int, after: Tensor, target: Tensor) -> Tensor:
        """What it is compared with: the same rows as they are when block `layer` keeps everything.

        With block l+1 still the host's these are rows of Z_{l+1} = `target`. Once it is tuned they are what it makes of
        the host's Z_l = `after`: it was tuned for the block above it, not to give Z_{l+1} back.
        """
        if layer == self.info.depth:
            return self.host.features(target)
        count = partial.counts[layer + 1]
        if layer + 1 not in partial.tuned:
            return self.sort(target, partial.order, count)
        return self.next_output(partial, layer, self.sort(after, partial.order)).detach()


def sort_tokens(x: Tensor, order: Tensor, prefix: int) -> Tensor:
    """Each image's tokens in its own order of patches, prefix first: (B, p + N, d), (B, N) → (B, p + N, d)."""
    patches = x[:, prefix:].take_along_dim(order[:, :, None], dim=1)
    return torch.cat([x[:, :prefix], patches], dim=1)


def relative_error(output: Tensor, reference: Tensor) -> Tensor:
    """Squared Frobenius norm of the difference over that of the reference, per image: (B, …) → (B,)."""
    difference = (output - reference).flatten(1).float().square().sum(dim=1)
    return difference / reference.flatten(1).float().square().sum(dim=1).clamp_min(1e-30)
