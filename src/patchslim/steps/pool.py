"""`pool`: after the block, patches are max-pooled along their sequence (HVT, Pan et al., ICCV 2021)."""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.hosts import HostInfo
from patchslim.steps.base import Runner, Step, register_step
from patchslim.steps.tokens import Tokens, moved

KERNEL, STRIDE = 3, 2  # the paper's, along the sequence of patches


def pooled(patches: int) -> int:
    """Patches that a pooling leaves."""
    return (patches - KERNEL) // STRIDE + 1


@register_step
class Pool(Step):
    """The block computes all patches; half of them go on. Windows overlap, so tokens share some patches."""

    takes_sizes: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    placed: ClassVar[bool] = False
    kind: Literal["pool"] = "pool"

    def leaving(self, entering: int) -> int:
        """About half."""
        return pooled(entering)

    def check(self, entering: int) -> None:
        """One window at least."""
        if entering < KERNEL:
            raise ValueError(f"pools {entering} patches; it takes at least {KERNEL}")


class PoolRunner(Runner, runs=Pool):
    """Max pooling; prefix tokens pass. A position embedding is added, begins at zero and learns in recovery."""

    learns: ClassVar[frozenset[str]] = frozenset({"position"})

    def __init__(self, step: Pool, info: HostInfo, layer: int, entering: int) -> None:
        super().__init__(step, info, layer, entering)
        self.position = nn.Parameter(torch.zeros(1, pooled(entering), info.width), requires_grad=False)

    def forward(self, tokens: Tokens, block: Any) -> Tokens:
        """(B, p + t, d) → (B, p + ⌊(t - 3) / 2⌋ + 1, d)."""
        x: Tensor = block.math.run(block, tokens.x, tokens.x.shape[1])
        patches = x[:, self.prefix :].transpose(1, 2)
        left = F.max_pool1d(patches, KERNEL, STRIDE).transpose(1, 2) + self.position
        owner = tokens.owner
        if owner is not None:  # of the windows that see a patch, the one it is in the middle of or begins
            place = (torch.arange(patches.shape[2], device=x.device) // STRIDE).clamp_max(left.shape[1] - 1)
            owner = moved(owner, place.expand(x.shape[0], -1))
        return Tokens(torch.cat([x[:, : self.prefix], left], dim=1), owner=owner)
