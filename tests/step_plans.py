"""Plans of any mix of steps, with weights of nobody's making, for tests that ask about every kind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import patchslim as ps
from patchslim.hosts import open_host
from patchslim.plan import SlimPlan, make_plan
from patchslim.slimmed import assembled_, frozen_keys
from patchslim.slimmed.assemble import fingerprint
from patchslim.steps import Step
from patchslim.steps.carry import Carry
from patchslim.steps.cover import Cover
from patchslim.steps.dynamicvit import DynamicViT
from patchslim.steps.evit import EViT
from patchslim.steps.keep import Keep
from patchslim.steps.merge import Merge
from patchslim.steps.pool import Pool
from patchslim.steps.power import Power
from patchslim.steps.predict import Predict
from patchslim.steps.slice import Slice
from patchslim.steps.threshold import Threshold
from patchslim.steps.tome import ToMe

Make = Callable[[int], Step]  # patches that stay → step
LEAST = 3  # patches that every image keeps where images differ
# The kinds that have a masked reference, in every form they come in.
OURS: Mapping[str, Make] = {
    "keep": lambda n: Keep(),
    "slice": lambda n: Slice(n=n),
    "carry": lambda n: Carry(n=n),
    "cover": lambda n: Cover(n=n, channels=3),
    "merge": lambda n: Merge(n=n, channels=3),
    "merge, dropping": lambda n: Merge(n=n, channels=5, drop=True),
    "predict": lambda n: Predict(n=n, hidden=4),
    "predict, context": lambda n: Predict(n=n, hidden=4, selector="context"),
    "predict, pool": lambda n: Predict(n=n, selector="pool"),
    "predict, merging": lambda n: Predict(n=n, hidden=4, merge=True),
    "predict, merging, context": lambda n: Predict(n=n, hidden=4, merge=True, selector="context"),
    "predict, merging, pool": lambda n: Predict(n=n, merge=True, selector="pool"),
    "threshold": lambda n: Threshold(n=n, above=0.1, least=LEAST, hidden=4),
    "threshold, context": lambda n: Threshold(n=n, above=0.1, least=LEAST, hidden=4, selector="context"),
    "threshold, pool": lambda n: Threshold(n=n, above=-0.3, least=LEAST, selector="pool"),
}
PEERS: Mapping[str, Make] = {
    "tome": lambda n: ToMe(r=max(1, n // 2)),
    "evit": lambda n: EViT(n=n),
    "power": lambda n: Power(n=n),
    "dynamicvit": lambda n: DynamicViT(n=n),
    "pool": lambda n: Pool(),
}
STEPS = {**OURS, **PEERS}
# Last steps: for any plan, where the head reads no patch, and where images differ and it does.
ENDINGS = (Keep(), Slice(n=0), Threshold(n=LEAST, least=LEAST, hidden=4))
Owned = tuple[SlimPlan, dict[str, Tensor]]


def owning(
    model: nn.Module, steps: Sequence[Step], order: Sequence[int] | None = None, seed: int = 0, scale: float = 0.4
) -> Owned:
    """A plan of these steps and random weights for all that they own, so small that no share is 0 in fp32."""
    plan = make_plan(ps.inspect(model), steps, order)
    slim, generator = assembled_(open_host(copy.deepcopy(model)), plan), torch.Generator().manual_seed(seed)
    names, state = frozen_keys(slim), slim.state_dict()
    weights = {name: scale * torch.randn(state[name].shape, generator=generator) for name in names}
    return plan.with_(weights=fingerprint(weights)), weights


def alone(model: nn.Module, step: Step, seed: int = 0, scale: float = 0.4) -> Owned:
    """A plan in which one block chooses; the last block computes what the head reads."""
    info = ps.inspect(model)
    order = torch.randperm(info.patches, generator=torch.Generator().manual_seed(seed)).tolist()
    begun = [Keep(), step, *[Keep()] * (info.depth - 3)]
    keep, cut, alike = ENDINGS
    ending = next(ending for ending in (cut, keep, alike) if possible(model, [*begun, ending], order))
    return owning(model, [*begun, ending], order if step.ordered else None, seed, scale)


@st.composite
def mixes(draw: st.DrawFn, model: nn.Module, names: Sequence[str]) -> Owned:
    """Plans of any steps in any sequence that makes one, in any order of the patches."""
    info = ps.inspect(model)
    order = draw(st.permutations(range(info.patches)))
    steps, left = list[Step](), info.patches
    for _ in range(info.depth):
        name, n = draw(st.sampled_from(names)), draw(st.integers((left + 1) // 2, left) | st.integers(0, left))
        step = next(step for step in (STEPS[name](n), *ENDINGS) if possible(model, [*steps, step], order))
        left = step.leaving(left)
        steps.append(step)
    return owning(model, steps, order, draw(st.integers(0, 5)))


def possible(model: nn.Module, begun: Sequence[Step], order: Sequence[int]) -> bool:
    """Whether a plan can begin with these steps."""
    return any(_makes(model, begun, ending, order) for ending in ENDINGS)


def _makes(model: nn.Module, begun: Sequence[Step], ending: Step, order: Sequence[int]) -> bool:
    info = ps.inspect(model)
    more = info.depth - len(begun)
    try:
        make_plan(info, [*begun, *[Keep()] * (more - 1), *[ending] * min(more, 1)], order)
    except ps.PlanError:
        return False
    return True
