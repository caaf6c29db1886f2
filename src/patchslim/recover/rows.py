"""What the host says about the rows that a slim block computes: for a patch token, the mean over the input patches it
stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from patchslim.plan import SlimPlan
from patchslim.slim.model import static_sources
from patchslim.slim.packed import Packed
from patchslim.slim.tokens import Tokens

State = Tensor | Tokens | Packed  # what passes from one slim block to the next


class Rows:
    """Pairs a slim block's output with the host's, for one plan. Where images choose, blocks have to be watched."""

    def __init__(self, plan: SlimPlan, device: torch.device) -> None:
        self.prefix, self.counts = plan.host.prefix_tokens, plan.counts
        sources = [] if plan.varies else static_sources(plan)
        self.shares = [_shares(rows).to(device) for rows in sources]  # per block (n, N)

    def pair(self, layer: int, output: State, z: Tensor) -> tuple[Tensor, Tensor]:
        """(computed, reference), of one shape, from block `layer`'s output and the host's Z_l (B, p + N, d).

        Both are (B, p + n, d); of a packed batch (1, T, d).
        """
        if isinstance(output, Packed):
            return output.x, _packed_rows(output, z, self.prefix)
        x = output.x if isinstance(output, Tokens) else output
        shares = self._shares(layer, output)
        patches = shares.to(z.dtype) @ z[:, self.prefix :]
        # A block that carries removed patches along has them after those it computes.
        return x[:, : self.prefix + shares.shape[-2]], torch.cat([z[:, : self.prefix], patches], dim=1)

    def _shares(self, layer: int, output: Tensor | Tokens) -> Tensor:
        """How much each input patch counts in each token: (n, N) or (B, n, N), rows that sum to 1."""
        if self.shares:
            return self.shares[layer - 1]
        assert isinstance(output, Tokens)
        assert output.source is not None
        return _shares(output.source)


def _shares(source: Tensor) -> Tensor:
    return source / source.sum(dim=-1, keepdim=True)


def _packed_rows(output: Packed, z: Tensor, prefix: int) -> Tensor:
    """The host's rows of the tokens that a packed batch keeps: (B, p + N, d) → (1, T, d)."""
    length = torch.tensor(output.lengths, device=z.device)
    image = torch.arange(len(length), device=z.device).repeat_interleave(length)
    within = torch.arange(len(image), device=z.device) - (length.cumsum(0) - length)[image]
    row = torch.where(within < prefix, within, prefix + output.place)
    return z.flatten(0, 1)[image * z.shape[1] + row][None]
