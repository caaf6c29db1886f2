"""`predict`: the block's module G says which patches matter; the others leave, or merge where that moves little."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from patchslim.hosts import HostInfo, Incoming
from patchslim.kernels.match import TINY, unit_keys
from patchslim.kernels.merge import merge_pairs
from patchslim.steps.base import Choice, Counted, Reducing, Seen, check_stays, register_step
from patchslim.steps.counting import Work, averaging_macs, pairing_macs
from patchslim.steps.pairs import join_pairs
from patchslim.steps.selector import SelectorKind, as_fp32, make_selector, selector_macs
from patchslim.steps.tokens import Tokens, merged_tokens, pick


@register_step
class Predict(Counted):
    """n of each image's own patches, those that G ranks first."""

    per_image: ClassVar[bool] = True
    kind: Literal["predict"] = "predict"
    merge: bool = False
    selector: SelectorKind = "mlp"
    hidden: int = Field(default=0, ge=0)  # width of G's hidden layer, where there is one

    def check(self, entering: int) -> None:
        """At least one stays; at least half where the others merge."""
        super().check(entering)
        check_stays(self.n, entering, half=self.merge)

    @property
    def sizes(self) -> bool:
        """Merged tokens stand for several patches."""
        return self.merge

    @property
    def tracks(self) -> bool:
        """The paper's G has a weight for every patch position."""
        return self.selector == "pool"

    def work(self, info: HostInfo, layer: int, entering: int) -> Work:
        """G on all that come in; pairs and averages where the others merge."""
        gone, shape = entering - self.n, info.blocks[layer - 1]
        choice = selector_macs(info, self.selector, self.hidden, entering)
        if self.merge:
            choice += pairing_macs(info, shape, entering) + averaging_macs(shape, entering // 2, gone)
        return super().work(info, layer, entering)._replace(choice=choice)

    def module(self, info: HostInfo, layer: int, entering: int) -> nn.Module:
        """Asks G, then runs the block."""
        return PredictRunner(self, info)

    def reference(self, seen: Seen) -> Choice:
        """The best by G's word, or pairs by plain loops."""
        incoming, prefix = seen.incoming(), seen.host.info.prefix_tokens
        selector: Any = seen.own.selector
        score = selector(incoming.y[:, prefix:], seen.x.new_tensor([seen.alive]).long())[0].tolist()
        if not self.merge:
            ranked = sorted(range(len(score)), key=lambda place: -score[place])
            return Choice([seen.alive[place] for place in ranked[: self.n]])
        weights = seen.weights(incoming)
        keys = unit_keys(incoming.k, prefix)[0]
        attended = weights if seen.host.info.reads_class else None
        kept, into = join_pairs(
            seen.alive,
            lambda i, j: float(keys[i] @ keys[j]),
            _matter(score, attended),
            len(seen.alive) - self.n,
        )
        return Choice(kept, into, dict(zip(seen.alive, weights, strict=True)))


def _matter(score: list[float], attended: list[float] | None) -> list[float]:
    """What patches weigh: the geometric mean of G's share and the class token's attention, or the share alone."""
    total = sum(math.exp(own) for own in score)
    share = [math.exp(own) / total for own in score]
    if attended is None:
        return share
    return [math.sqrt(own * max(other, TINY)) for own, other in zip(share, attended, strict=True)]


class PredictRunner(Reducing):
    """Patches with the largest log ŝ stay; or pairs of least weight times distance become one."""

    part: ClassVar[str] = "selector"  # what it learnt

    def __init__(self, step: Predict, info: HostInfo) -> None:
        super().__init__(info.prefix_tokens)
        self.n, self.merge, self.weighed, self.tracks = step.n, step.merge, info.reads_class, step.tracks
        self.selector = make_selector(info, step.selector, step.hidden)

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        score = as_fp32(self.selector(incoming.y[:, self.prefix :], state.place if self.tracks else None))
        if not self.merge:
            # Not a sort: compilers make a kernel for every length of one, and that takes them minutes.
            return pick(state, score.topk(self.n, dim=1).indices, self.prefix)
        importance = self.class_attention(state, incoming, block) if self.weighed else None
        weight = weigh(score, importance)
        merged = merge_pairs(state.x, state.size, incoming.k, self.n, self.prefix, importance, weight)
        return merged_tokens(state, merged)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"n={self.n}"


def weigh(score: Tensor, importance: Tensor | None) -> Tensor:
    """How much patches matter, the most being 1: by G's word and, where a class token is read, by its attention, in
    equal parts. G saw the whole network's answer; attention sees this image as it is by now: (B, t), (B, t) → (B, t).
    """
    share = score.log_softmax(dim=1)
    if importance is not None:
        share = (share + as_fp32(importance).clamp_min(TINY).log()) / 2
    return (share - share.amax(dim=1, keepdim=True)).exp()
