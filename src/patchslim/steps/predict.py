"""`predict`: the block's module G says which patches matter; the others leave, or merge where that moves little."""

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from patchslim.hosts import HostInfo, Incoming
from patchslim.kernels.match import TINY, chosen, unit_keys
from patchslim.kernels.merge import merge
from patchslim.steps.base import WIDEST, Choosing, Reducing, class_attention_macs, register_step
from patchslim.steps.reference import Choice, Seen, join_in_rounds
from patchslim.steps.selector import SelectorKind, make_selector, selector_macs, told
from patchslim.steps.tokens import Tokens, merged_tokens, pick


@register_step
class Predict(Choosing):
    """n of each image's own patches, those that G ranks first."""

    kind: Literal["predict"] = "predict"
    merge: bool = False
    selector: SelectorKind = "mlp"
    hidden: int = Field(default=0, ge=0, le=WIDEST)  # width of G's hidden layer, where there is one

    @property
    def sizes(self) -> bool:
        """Merged tokens stand for several patches."""
        return self.merge

    @property
    def tracks(self) -> bool:
        """The paper's G has a weight for every patch position."""
        return self.selector == "pool"

    def choice_macs(self, info: HostInfo, layer: int, entering: int) -> int:
        """G on all that come in; where the others merge, pairs of keys: all of them, and those that join what stays."""
        choice, shape = selector_macs(info, self.selector, self.hidden, entering), info.blocks[layer - 1]
        if self.merge:
            pairs = entering**2 + self.n * (entering - self.n)
            choice += pairs * shape.attention_width + class_attention_macs(info, shape, entering)
        return choice

    def reference(self, seen: Seen) -> Choice:
        """The best by G's word, or those that join by plain loops."""
        incoming, info = seen.incoming(), seen.host.info
        score = told(seen, incoming)
        if not self.merge:
            return Choice(sorted(seen.alive, key=lambda patch: -score[patch])[: self.n])
        weights, keys = seen.weights(incoming), unit_keys(incoming.k, info.prefix_tokens)[0]
        weight = _matter(list(score.values()), list(weights.values()) if info.reads_class else None)

        kept, into = join_in_rounds(seen.alive, keys, weight, len(seen.alive) - self.n)
        return Choice(kept, into, weights)


def _matter(score: list[float], attended: list[float] | None) -> list[float]:
    """What patches weigh: the geometric mean of G's share and the class token's attention, or the share alone."""
    log = score
    if attended is not None:
        log = [(own + math.log(max(other, TINY))) / 2 for own, other in zip(score, attended, strict=True)]
    return [max(math.exp(own - max(log)), TINY) for own in log]


class PredictRunner(Reducing, runs=Predict):
    """Patches with the largest log ŝ stay; or those whose going costs least join others."""

    part = "selector"

    def __init__(self, step: Predict, info: HostInfo, layer: int, entering: int) -> None:
        super().__init__(step, info, layer, entering)
        self.merge, self.tracks = step.merge, step.tracks
        self.selector = make_selector(info, step.selector, step.hidden)

    def reduce(self, state: Any, incoming: Incoming, block: Any) -> Tokens:
        """(B, p + t, …) → (B, p + n, …)."""
        score = self.selector(incoming.y[:, self.prefix :], state.place if self.tracks else None).float()
        if not self.merge:
            # Not a sort: compilers make a kernel for every length of one, and that takes them minutes.
            return pick(state, score.topk(self.n, dim=1).indices, self.prefix)
        importance = self.class_attention(state, incoming, block)
        keys, matters = unit_keys(incoming.k, self.prefix), log_matter(score, importance)
        found, _ = chosen(torch.cat([keys, matters[..., None].to(keys)], dim=2), None, self.n)
        return merged_tokens(state, merge(state.x, state.size, found, self.prefix, importance, self.norm(block)))


def log_matter(score: Tensor, importance: Tensor | None) -> Tensor:
    """The logarithm of how much patches matter, 0 for the most: by G's word and, where a class token is read, by its
    attention, in equal parts. G saw the whole network's answer; attention sees this image as it is by now: (B, t),
    (B, t) → (B, t)."""
    share = score.log_softmax(dim=1)
    if importance is not None:
        share = (share + importance.float().clamp_min(TINY).log()) / 2
    return share - share.amax(dim=1, keepdim=True)
