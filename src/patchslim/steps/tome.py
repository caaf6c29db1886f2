"""`tome`: r tokens merge between attention and MLP, by bipartite soft matching on keys (Bolya et al., ICLR 2023)."""

import math
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from patchslim.hosts import HostInfo
from patchslim.kernels.match import take
from patchslim.steps.base import Halfway, Step, register_step
from patchslim.steps.tokens import Tokens, moved


@register_step
class ToMe(Step):
    """r tokens go, each into another one; the mean is weighted by size. Attention is proportional to sizes."""

    per_image: ClassVar[bool] = True
    placed: ClassVar[bool] = False
    halfway: ClassVar[bool] = True
    sizes: ClassVar[bool] = True
    kind: Literal["tome"] = "tome"
    r: int = Field(ge=1)

    def kept(self, entering: int) -> int:
        """All but r."""
        return entering - self.r

    def check(self, entering: int) -> None:
        """At most half can merge."""
        if self.r > entering // 2:
            raise ValueError(f"merges {self.r} of {entering} patches; at most half can")

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """Similarity of even to odd tokens over one head's width."""
        tokens = info.prefix_tokens + entering
        return (tokens + 1) // 2 * (tokens // 2) * (info.blocks[layer - 1].attention_width // info.heads)


class Pairs(NamedTuple):
    """Even tokens that go, the odd ones they join, and the even ones that stay; numbers within their halves."""

    gone: Tensor  # (B, r)
    into: Tensor  # (B, r)
    stay: Tensor  # (B, ⌈t/2⌉ - r)


def match(metric: Tensor, r: int, prefix: int) -> Pairs:
    """Bipartite soft matching: every even token looks for the odd one most like it; the r best pairs merge.

    metric (B, p + t, c). Prefix tokens neither go nor take any in. Where there are some, those that stay keep their
    order, so that the prefix stays in front.
    """
    unit = F.normalize(metric, dim=-1)
    scores = unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)
    scores[:, : (prefix + 1) // 2] = -math.inf
    scores[:, :, : prefix // 2] = -math.inf
    similarity, nearest = scores.max(dim=2)
    rank = similarity.argsort(dim=1, descending=True)
    stay = rank[:, r:].sort(dim=1).values if prefix else rank[:, r:]
    return Pairs(rank[:, :r], nearest.gather(1, rank[:, :r]), stay)


def in_front(stay: Tensor, odd: Tensor, front: Tensor, prefix: int) -> Tensor:
    """Even rows that stay, then the odd ones, and the prefix in front of all: (B, …, c) each."""
    if prefix < 2:
        return torch.cat([stay, odd], dim=1)
    half, rest = (prefix + 1) // 2, prefix // 2
    return torch.cat([front, stay[:, half:], odd[:, rest:]], dim=1)


def joined(rows: Tensor, pairs: Pairs, prefix: int) -> Tensor:
    """Rows that merge, added up: (B, p + t, c) → (B, p + t - r, c)."""
    even, odd = rows[:, ::2], rows[:, 1::2]
    into = pairs.into[..., None].expand(-1, -1, rows.shape[2])
    stay, odd = take(even, pairs.stay), odd.scatter_add(1, into, take(even, pairs.gone))
    return in_front(stay, odd, rows[:, :prefix], prefix)


def goes_to(pairs: Pairs, tokens: int, prefix: int) -> Tensor:
    """Where every patch goes: (B, t) places among the patches that are left."""
    batch, device = pairs.stay.shape[0], pairs.stay.device
    number = torch.arange(tokens, device=device).expand(batch, -1)
    kept = in_front(2 * pairs.stay, number[:, 1::2], number[:, :prefix], prefix)
    place = torch.zeros_like(number).scatter(1, kept, torch.arange(kept.shape[1], device=device).expand(batch, -1))
    place = place.scatter(1, 2 * pairs.gone, place.gather(1, 2 * pairs.into + 1))
    return place[:, prefix:] - prefix


class ToMeRunner(Halfway, runs=ToMe):
    """Attention is proportional; the keys, averaged over heads, are what tokens are compared by."""

    def read(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """The mean key of every token: (B, p + t, d_h)."""
        return k.mean(dim=1)

    def reduce(self, tokens: Tokens, seen: Tensor) -> Tokens:
        """(B, p + t, d) → (B, p + n, d)."""
        x, r = tokens.x, tokens.x.shape[1] - self.prefix - self.n
        size = torch.ones_like(x[..., 0]) if tokens.size is None else tokens.size
        with torch.no_grad():  # which tokens merge is a choice, and has no derivative
            pairs = match(seen.detach(), r, self.prefix)
        total = joined(size[..., None], pairs, self.prefix)
        owner = tokens.owner
        owner = None if owner is None else moved(owner, goes_to(pairs, x.shape[1], self.prefix))
        return Tokens(joined(x * size[..., None], pairs, self.prefix) / total, total[..., 0], owner)
