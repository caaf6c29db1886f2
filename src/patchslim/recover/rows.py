"""What the host says about the rows that a slim block computes: for a patch token, the mean over the input patches it
stands for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from patchslim.plan import SlimPlan
from patchslim.slim import State, plan_of
from patchslim.steps.packed import Packed


def exact_plan(model: nn.Module) -> SlimPlan | None:
    """The model's plan, where it is known patch by patch what a token stands for; None otherwise."""
    plan = plan_of(model)
    return plan if plan is not None and plan.exact else None


class Rows:
    """Pairs a slim block's output with the host's, for one plan; the tokens have to know what they stand for."""

    def __init__(self, plan: SlimPlan) -> None:
        self.prefix, self.counts = plan.host.prefix_tokens, plan.counts

    def pair(self, layer: int, output: State, z: Tensor) -> tuple[Tensor, Tensor]:
        """(computed, reference), of one shape, from block `layer`'s output and the host's Z_l (B, p + N, d).

        Both are (B, p + n, d); of a packed batch (1, T, d).
        """
        if isinstance(output, Packed):
            return output.x, _packed_rows(output, z, self.prefix)
        count = self.counts[layer - 1]  # a block that carries removed patches along has them after those it computes
        stands = output.rows(self.prefix)[:, :count].to(z.dtype)  # (B, n, N)
        patches = stands @ z[:, self.prefix :] / stands.sum(dim=-1, keepdim=True)
        return output.x[:, : self.prefix + count], torch.cat([z[:, : self.prefix], patches], dim=1)


def _packed_rows(output: Packed, z: Tensor, prefix: int) -> Tensor:
    """The host's rows of the tokens that a packed batch keeps: (B, p + N, d) → (1, T, d)."""
    length = torch.tensor(output.lengths, device=z.device)
    image = torch.arange(len(length), device=z.device).repeat_interleave(length)
    within = torch.arange(len(image), device=z.device) - (length.cumsum(0) - length)[image]
    row = torch.where(within < prefix, within, prefix + output.place)
    return z.flatten(0, 1)[image * z.shape[1] + row][None]
