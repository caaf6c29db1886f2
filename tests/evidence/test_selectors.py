"""Training G: closer to the exact score than a constant, and the same for the same seed."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from patchslim.cache import Cache
from patchslim.data import as_source
from patchslim.events import silent
from patchslim.evidence import selectors as selectors_module
from patchslim.evidence.features import Features
from patchslim.evidence.scores import Score, exact_scores
from patchslim.evidence.selectors import SelectorTraining
from patchslim.hosts import open_host
from patchslim.plan import SlimPlan, make_plan
from patchslim.steps.predict import Predict
from patchslim.steps.selector import (
    ContextSelector,
    MlpSelector,
    PoolSelector,
    Selector,
    SelectorKind,
    hidden_width,
    make_selector,
)
from small import make_host, make_images, steps_for

SELECTORS = {"context": ContextSelector, "mlp": MlpSelector, "pool": PoolSelector}
IMAGES, PATCHES = 6, 16
SOME = ["registers", "attention pool"]


def features_of(model: Any) -> Features:
    return Features(open_host(model), as_source(make_images(IMAGES)), 3, 2**30)


def training_of(
    model: Any,
    selector: SelectorKind = "context",
    epochs: int = 3,
    seed: int = 0,
    score: Score = "taylor",
    cache: Cache | None = None,
    listen: Any = silent,
) -> SelectorTraining:
    features = features_of(model)
    return SelectorTraining(features.host, features, cache or Cache(), listen, selector, score, epochs, seed)


def plan_of(model: Any, selector: SelectorKind, *counts: int) -> SlimPlan:
    """A plan that predicts, the last count 0 where no patch is read."""
    hidden = hidden_width(ps.inspect(model), selector)
    steps = steps_for(model, lambda n, layer: Predict(n=n, selector=selector, hidden=hidden), list(counts))
    return make_plan(ps.inspect(model), steps)


@torch.no_grad()
def slow_walk(
    model: Any, plan: SlimPlan, selectors: Mapping[int, Selector], layers: Sequence[int]
) -> dict[int, list[tuple[Tensor, Tensor]]]:
    """What G says and what it should say in some blocks, per image (t,): one image after the other, at full shape, the
    patches that have left masked."""
    host = open_host(model)
    prefix, tokens = host.info.prefix_tokens, host.info.tokens
    exact = exact_scores(host, features_of(model), plan.counts, "taylor")
    found: dict[int, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in layers}
    for number, image in enumerate(make_images(IMAGES).split(1)):
        x, alive = host.embed(image), list(range(PATCHES))
        for layer, count in enumerate(plan.counts, start=1):
            block: Any = host.blocks[layer - 1]
            living = [*range(prefix), *(prefix + patch for patch in alive)]
            kept = alive
            if layer in layers:
                said = selectors[layer](block.norm1(x[:, living])[:, prefix:], torch.tensor([alive]))[0]
                found[layer].append((said, exact[number, layer - 1, alive]))
                best = said.argsort(descending=True).tolist()
                kept = sorted(alive[place] for place in best[:count])
            key = torch.zeros(tokens, dtype=torch.bool)
            key[living] = True
            x = block(x, attn_mask=key.expand(1, 1, tokens, tokens))
            alive = kept
    return found


def beats_a_constant(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether G's squared error is below that of the best constant."""
    said, target = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return float((said - target).square().mean()) < float(target.var(correction=0))


@pytest.mark.parametrize("counts", [(16, 16, 16, 16), (12, 7, 4, 3)])
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("kind", SOME)
def test_training_beats_a_constant_on_its_images(kind: str, selector: Any, counts: tuple[int, ...]) -> None:
    """On the network as slimmed up to each block. Block 4 is left out: its mean readout makes all patches alike."""
    model = make_host(kind)
    plan = plan_of(model, selector, *counts)
    selectors = training_of(model, selector, 60).fit(plan, [1, 2, 3])
    assert sorted(selectors) == [1, 2, 3]
    assert all(type(found) is SELECTORS[selector] for found in selectors.values())
    for pairs in slow_walk(model, plan, selectors, [1, 2, 3]).values():
        assert beats_a_constant(pairs)


def squared_error(model: Any, plan: SlimPlan, selectors: Mapping[int, Selector]) -> float:
    """Of log scores over all patches that come into the first block."""
    said, target = (torch.stack(part) for part in zip(*slow_walk(model, plan, selectors, [1])[1], strict=True))
    return float((said - target).square().mean())


@pytest.mark.parametrize("selector", SELECTORS)
def test_more_training_lowers_the_error_further(selector: Any) -> None:
    model, errors = make_host(), []
    plan = plan_of(model, selector, 16, 16, 16, 0)
    for epochs in (1, 15, 60):
        errors.append(squared_error(model, plan, training_of(model, selector, epochs).fit(plan, [1])))
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("selector", SELECTORS)
def test_training_can_go_on_from_another_G(selector: Any) -> None:
    model = make_host()
    whole, plan = plan_of(model, selector, 16, 16, 16, 0), plan_of(model, selector, 12, 7, 4, 0)
    begin = training_of(model, selector, 60).fit(whole, [1, 2, 3])
    before = copy.deepcopy(weights_of(begin))
    on = training_of(model, selector, 1).fit(plan, [1, 2, 3], begin)
    fresh = training_of(model, selector, 1).fit(plan, [1, 2, 3])
    assert squared_error(model, plan, on) < squared_error(model, plan, fresh)
    assert all(torch.equal(before[name], part) for name, part in weights_of(begin).items())


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("score", [-2.8, -12.0])
@torch.no_grad()
def test_G_begins_near_the_score_it_is_given(selector: Any, score: float) -> None:
    torch.manual_seed(0)
    fresh = make_selector(ps.inspect(make_host()), selector, 4)
    place, y = torch.arange(PATCHES).expand(3, -1), torch.randn(3, PATCHES, 24)
    assert float((fresh(y, place) - score).abs().mean()) > 1.0
    fresh.start_at_(score)
    assert float((fresh(y, place) - score).abs().mean()) < 0.5


def weights_of(selectors: Mapping[int, Selector]) -> dict[str, Tensor]:
    return {f"{layer}.{name}": part for layer in selectors for name, part in selectors[layer].state_dict().items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("selector", SELECTORS)
def test_the_same_seed_gives_the_same_weights_whatever_else_is_drawn(selector: Any) -> None:
    model, found = make_host(), []
    for noise in (1, 2):
        torch.manual_seed(noise)
        before = torch.random.get_rng_state()
        plan = plan_of(model, selector, 12, 7, 4, 0)
        found.append(weights_of(training_of(model, selector).fit(plan, [1, 2, 3])))
        assert torch.equal(torch.random.get_rng_state(), before)  # nobody else's dice
    assert same(*found)


@pytest.mark.parametrize("selector", SELECTORS)
def test_each_block_and_seed_begins_with_a_G_of_its_own(selector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors_module, "LEARNING_RATE", 0.0)  # so that what it begins with is there in the end
    model = make_host()
    plan = plan_of(model, selector, 16, 16, 16, 0)
    first, other = (training_of(model, selector, 1, seed).fit(plan, [1, 2]) for seed in (0, 1))
    begun = [next(part.parameters()) for part in (first[1], first[2], other[1], other[2])]
    assert not any(torch.equal(*pair) for pair in itertools.combinations(begun, 2))


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_blocks_G_does_not_depend_on_which_others_are_asked_for(selector: Any) -> None:
    model = make_host()
    plan = plan_of(model, selector, 16, 16, 16, 0)
    every = training_of(model, selector).fit(plan, [1, 2, 3])
    alone = training_of(model, selector).fit(plan, [2])
    assert list(alone) == [2]
    assert same(alone[2].state_dict(), every[2].state_dict())


def test_G_learns_the_score_it_is_told_to() -> None:
    """The one that learnt a score is nearer to it than the one that learnt another."""
    model = make_host()
    plan = plan_of(model, "mlp", 16, 16, 16, 0)
    kinds: tuple[Score, ...] = ("taylor", "impact")
    said = {}
    for score in kinds:
        selectors = training_of(model, "mlp", 60, score=score).fit(plan, [1])
        said[score] = torch.stack([pair[0] for pair in slow_walk(model, plan, selectors, [1])[1]])
    for score, other in zip(kinds, reversed(kinds), strict=True):
        exact = exact_scores(open_host(model), features_of(model), plan.counts, score)[:, 0]
        assert float((said[score] - exact).square().mean()) < float((said[other] - exact).square().mean())


def test_a_trained_G_is_remembered() -> None:
    model, heard, cache = make_host(), list[Any](), Cache()
    plan, other = plan_of(model, "context", 12, 7, 4, 0), plan_of(model, "context", 12, 7, 5, 0)

    def fit(wanted: SlimPlan) -> list[int]:
        """The blocks whose G is trained."""
        heard.clear()
        training_of(model, cache=cache, listen=heard.append).fit(wanted, [1, 2, 3])
        return [event["block"] for event in heard if event["event"] == "selector"]

    assert fit(plan) == [1, 2, 3]
    first = copy.deepcopy(weights_of(training_of(model, cache=cache).fit(plan, [1, 2, 3])))
    assert fit(plan) == []
    assert fit(other) == [1, 2, 3]  # on another network it learns anew
    assert same(first, weights_of(training_of(model, cache=cache).fit(plan, [1, 2, 3])))
