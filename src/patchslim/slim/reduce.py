"""How a block comes by the tokens it computes: one class per way of choosing. Each maps the incoming tokens to those
that take queries; the block does the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from patchslim.hosts.base import Incoming
from patchslim.slim.merge import (
    TINY,
    join,
    join_by_class,
    join_first,
    join_lighter,
    joins_fast,
    learnt_weight,
    match,
    match_lighter,
    unit_keys,
    unrounded,
    weight_of,
)
from patchslim.slim.predictor import as_fp32
from patchslim.slim.tokens import Tokens, first, pick


class Reduce(nn.Module):
    """Keeps `n` patches and the prefix. The base class takes the first ones."""

    def __init__(self, n: int, prefix: int) -> None:
        super().__init__()
        self.n, self.prefix = n, prefix

    def forward(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        return first(tokens, self.n, self.prefix)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"n={self.n}"


class Grouped(Reduce):
    """Static merge on sorted tokens: the same groups for every image, so weights and sizes are constants."""

    own: Tensor
    given: Tensor
    size: Tensor

    def __init__(self, n: int, prefix: int, size: Tensor, into: Tensor) -> None:
        """size (t,) of the patches that come in; into (t - n,): the place each of the last ones joins, or -1."""
        super().__init__(n, prefix)
        joins = (torch.arange(n)[:, None] == into).to(size) * size[n:]  # (n, r)
        total = size[:n] + joins.sum(dim=1)
        self.register_buffer("own", (size[:n] / total)[:, None], persistent=False)
        self.register_buffer("given", joins / total[:, None], persistent=False)
        self.register_buffer("size", torch.cat([size.new_ones(prefix), total])[None], persistent=False)

    def forward(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tokens:
        """x_kept · s_kept / s + Σ x_gone · s_gone / s, with constant weights."""
        patches = tokens.x[:, self.prefix :]
        x = patches[:, : self.n] * self.own + self.given @ patches[:, self.n :]
        return Tokens(torch.cat([tokens.x[:, : self.prefix], x.to(tokens.x.dtype)], dim=1), self.size)


class PerImage(Reduce):
    """Each image's own patches; `merges` says whether the others join them, `weighed` whether a class token is read."""

    def __init__(self, n: int, prefix: int, merges: bool, weighed: bool) -> None:
        super().__init__(n, prefix)
        self.merges, self.weighed = merges, weighed

    def importance(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tensor | None:
        """The class token's attention to the patches, mean 1 (B, t); None where no class token is read."""
        if not self.weighed:
            return None
        attention: Tensor = block.math.class_attention(block, incoming, tokens.size)[:, self.prefix :]
        return attention * attention.shape[1]


class Nearest(PerImage):
    """Static patches stay, the first ones of sorted tokens; every other joins the one that it resembles most."""

    def forward(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tokens:
        """Averages go by the class token's attention where one is read, else by size."""
        if not self.merges:
            return first(tokens, self.n, self.prefix)
        importance = self.importance(tokens, incoming, block)
        return join_first(tokens, incoming.k, self.n, self.prefix, importance)


class Predicted(PerImage):
    """The block's own G says which patches matter: the others are dropped, or merge where that moves little."""

    def forward(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tokens:
        """Drop: the n patches with the largest log ŝ stay. Merge: pairs of least weight times distance become one."""
        score = as_fp32(block.predictor(incoming.y[:, self.prefix :], tokens.place))
        if not self.merges:
            # Not a sort: compilers make a kernel for every length of one, and that takes them minutes.
            return pick(tokens, score.topk(self.n, dim=1).indices, self.prefix)
        importance = self.importance(tokens, incoming, block)
        return join(tokens, incoming.k, self.n, self.prefix, importance, weigh(score, importance))


def weigh(score: Tensor, importance: Tensor | None) -> Tensor:
    """How much patches matter, the most being 1: by G's word and, where a class token is read, its attention, in equal
    parts. G saw the whole network's answer, attention sees this image as it is by now: (B, t), (B, t) → (B, t)."""
    share = score.log_softmax(dim=1)
    if importance is not None:
        share = (share + as_fp32(importance).clamp_min(TINY).log()) / 2
    return (share - share.amax(dim=1, keepdim=True)).exp()


class Matched(PerImage):
    """Patches that say the same as another one go; how near two are, the block's own distance says, or their keys."""

    def forward(self, tokens: Tokens, incoming: Incoming, block: Any) -> Tokens:
        """Pairs of least weight times distance become one; what the class token attends to weighs more."""
        k, n, prefix = incoming.k, self.n, self.prefix
        patches = tokens.x[:, prefix:].detach()  # nothing learns by a distance
        z = None if block.distance is None else unrounded(patches.device, block.distance, patches)
        if self.merges and self.weighed and joins_fast(tokens, k[:, :, prefix:]):
            query, norm = block.math.class_query(block, incoming), block.math.first_norm(block)
            return join_by_class(tokens, k, z, n, prefix, query, norm)
        importance = self.importance(tokens, incoming, block)
        if z is None:
            weight = weight_of(importance)
            if self.merges:
                return join(tokens, k, n, prefix, importance, weight)
            return pick(tokens, match(unit_keys(k, prefix), n, weight).keep, prefix)
        if self.merges:
            return join_lighter(tokens, z, n, prefix, importance)
        weight = learnt_weight(z[..., -1], importance)
        return pick(tokens, match_lighter(z[..., :-1], n, weight).keep, prefix)
