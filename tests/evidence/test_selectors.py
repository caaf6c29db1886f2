"""Training G: closer to the exact score than a constant, the same for the same seed, and ranked as scipy ranks."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr  # type: ignore[import-untyped]
from torch import Tensor

import patchslim as ps
from patchslim.data import as_source
from patchslim.hosts import open_host
from patchslim.plan import PredictorSpec, SlimPlan, build_plan
from patchslim.search.exact import exact_scores
from patchslim.search.features import Features
from patchslim.search.ledger import Ledger
from patchslim.search.predict import Trainer, rank_correlation
from patchslim.slim.predictor import (
    ContextPredictor,
    MlpPredictor,
    PoolPredictor,
    Predictor,
    hidden_width,
    make_predictor,
)
from small import make_host, make_images

PREDICTORS = {"context": ContextPredictor, "mlp": MlpPredictor, "pool": PoolPredictor}
IMAGES, PATCHES = 6, 16
SOME = ["registers", "attention pool"]


def config(**changes: Any) -> ps.SearchConfig:
    base: dict[str, Any] = {"select": "predicted", "removed": "drop", "batch_size": 3, "predictor_epochs": 60}
    return ps.SearchConfig(**(base | changes))


def features_of(model: Any, batch_size: int = IMAGES) -> Features:
    return Features(open_host(model), as_source(make_images(IMAGES)), batch_size, 2**30)


def trainer_of(model: Any, chosen: ps.SearchConfig) -> Trainer:
    return Trainer(open_host(model), features_of(model, chosen.batch_size), chosen, Ledger(), lambda event: None)


def plan_of(model: Any, chosen: ps.SearchConfig, *counts: int) -> SlimPlan:
    """A predicted plan, the last count 0 where no patch is read."""
    info = ps.inspect(model)
    spec = PredictorSpec(kind=chosen.predictor, hidden=hidden_width(info, chosen.predictor), weights="")
    kept = list(counts) if info.reads_patches else [*counts[:-1], 0]
    return build_plan(info, select="predicted", removed=chosen.removed, predictor=spec, patches_per_block=kept)


@torch.no_grad()
def slow_walk(
    model: Any, plan: SlimPlan, predictors: Mapping[int, Predictor], layers: Sequence[int]
) -> dict[int, list[tuple[Tensor, Tensor]]]:
    """What G says and what it should say in some blocks, per image (t,): one image after the other, at full shape, the
    patches that have left masked."""
    host = open_host(model)
    prefix, tokens = host.info.prefix_tokens, host.info.tokens
    exact = exact_scores(host, features_of(model, 3), plan.counts, "effect")
    found: dict[int, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in layers}
    for number, image in enumerate(make_images(IMAGES).split(1)):
        x, alive = host.embed(image), list(range(PATCHES))
        for layer, count in enumerate(plan.counts, start=1):
            block: Any = host.blocks[layer - 1]
            living = [*range(prefix), *(prefix + patch for patch in alive)]
            kept = alive
            if layer in layers:
                said = predictors[layer](block.norm1(x[:, living])[:, prefix:], torch.tensor([alive]))[0]
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
@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("kind", SOME)
def test_training_beats_a_constant_on_its_images(kind: str, predictor: Any, counts: tuple[int, ...]) -> None:
    """On the network as slimmed up to each block. Block 4 is left out: its mean readout makes all patches alike."""
    model, chosen = make_host(kind), config(predictor=predictor)
    plan = plan_of(model, chosen, *counts)
    predictors = trainer_of(model, chosen).fit(plan, [1, 2, 3])
    assert sorted(predictors) == [1, 2, 3]
    assert all(type(found) is PREDICTORS[predictor] for found in predictors.values())
    for pairs in slow_walk(model, plan, predictors, [1, 2, 3]).values():
        assert beats_a_constant(pairs)


def squared_error(model: Any, plan: SlimPlan, predictors: Mapping[int, Predictor]) -> float:
    """Of log scores over all patches that come into the first block."""
    said, target = (torch.stack(part) for part in zip(*slow_walk(model, plan, predictors, [1])[1], strict=True))
    return float((said - target).square().mean())


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_more_training_lowers_the_error_further(predictor: Any) -> None:
    model, errors = make_host(), []
    for epochs in (1, 15, 60):
        chosen = config(predictor=predictor, predictor_epochs=epochs)
        plan = plan_of(model, chosen, 16, 16, 16, 0)
        errors.append(squared_error(model, plan, trainer_of(model, chosen).fit(plan, [1])))
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_training_can_go_on_from_another_G(predictor: Any) -> None:
    model, chosen, short = make_host(), config(predictor=predictor), config(predictor=predictor, predictor_epochs=1)
    whole, plan = plan_of(model, chosen, 16, 16, 16, 0), plan_of(model, chosen, 12, 7, 4, 0)
    begin = trainer_of(model, chosen).fit(whole, [1, 2, 3])
    before = copy.deepcopy(weights_of(begin))
    on = trainer_of(model, short).fit(plan, [1, 2, 3], begin)
    fresh = trainer_of(model, short).fit(plan, [1, 2, 3])
    assert squared_error(model, plan, on) < squared_error(model, plan, fresh)
    assert all(torch.equal(before[name], part) for name, part in weights_of(begin).items())


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("kind", SOME)
def test_rank_correlations_are_those_of_scipy_over_the_patches_that_come_in(kind: str, predictor: Any) -> None:
    model, chosen = make_host(kind), config(predictor=predictor, predictor_epochs=10)
    plan = plan_of(model, chosen, 13, 9, 9, 4)
    trainer = trainer_of(model, chosen)
    predictors = trainer.fit(plan, plan.choosing)
    found = trainer.rank_correlations(plan, predictors)
    assert sorted(found) == plan.choosing
    for layer, pairs in slow_walk(model, plan, predictors, plan.choosing).items():
        expected = [spearmanr(said.numpy(), target.numpy()).statistic for said, target in pairs]
        assert found[layer] == pytest.approx(sum(expected) / IMAGES, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 4), length=st.integers(2, 30), seed=st.integers(0, 1000))
def test_rank_correlation_is_spearmans(rows: int, length: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, rows, length, generator=generator, dtype=torch.float64)
    found = rank_correlation(a, b)
    assert found.shape == (rows,)
    for row in range(rows):
        assert float(found[row]) == pytest.approx(spearmanr(a[row].numpy(), b[row].numpy()).statistic, abs=1e-9)
    assert rank_correlation(a, a.exp() * 3).tolist() == pytest.approx([1.0] * rows)
    assert rank_correlation(a, -a).tolist() == pytest.approx([-1.0] * rows)


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("score", [-2.8, -12.0])
@torch.no_grad()
def test_G_begins_near_the_score_it_is_given(predictor: Any, score: float) -> None:
    torch.manual_seed(0)
    fresh = make_predictor(ps.inspect(make_host()), predictor, 4)
    place, y = torch.arange(PATCHES).expand(3, -1), torch.randn(3, PATCHES, 24)
    assert float((fresh(y, place) - score).abs().mean()) > 1.0
    fresh.start_at(score)
    assert float((fresh(y, place) - score).abs().mean()) < 0.5


def weights_of(predictors: Mapping[int, Predictor]) -> dict[str, Tensor]:
    return {f"{layer}.{name}": part for layer in predictors for name, part in predictors[layer].state_dict().items()}


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(predictor: Any) -> None:
    model, found = make_host(), []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(noise)
        before = torch.random.get_rng_state()
        chosen = config(predictor=predictor, seed=seed, predictor_epochs=3)
        found.append(weights_of(trainer_of(model, chosen).fit(plan_of(model, chosen, 12, 7, 4, 0), [1, 2, 3])))
        assert torch.equal(torch.random.get_rng_state(), before)  # nobody else's dice
    first, again, other = found
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_each_blocks_G_is_its_own_and_does_not_depend_on_which_others_are_asked_for(predictor: Any) -> None:
    model, chosen = make_host(), config(predictor=predictor, predictor_epochs=3)
    plan = plan_of(model, chosen, 16, 16, 16, 0)
    every = trainer_of(model, chosen).fit(plan, [1, 2, 3])
    alone = trainer_of(model, chosen).fit(plan, [2])
    assert list(alone) == [2]
    assert all(torch.equal(part, every[2].state_dict()[name]) for name, part in alone[2].state_dict().items())
    assert not any(torch.equal(part, every[1].state_dict()[name]) for name, part in alone[2].state_dict().items())


def test_G_can_learn_attention_instead() -> None:
    model = make_host()
    chosen = config(score="attention", predictor_epochs=3)
    plan = plan_of(model, chosen, 16, 16, 16, 0)
    attention = trainer_of(model, chosen).fit(plan, [1])[1]
    impact = trainer_of(model, config(predictor_epochs=3)).fit(plan, [1])[1]
    assert any(not torch.equal(part, impact.state_dict()[name]) for name, part in attention.state_dict().items())


def test_a_trained_G_is_remembered() -> None:
    model, chosen = make_host(), config(predictor_epochs=3)
    plan = plan_of(model, chosen, 12, 7, 4, 0)
    heard: list[Any] = []
    ledger = Ledger()
    trainers = [Trainer(open_host(model), features_of(model, 3), chosen, ledger, heard.append) for _ in range(2)]
    first = weights_of(trainers[0].fit(plan, [1, 2, 3]))
    assert [event["block"] for event in heard if event["event"] == "predictor"] == [1, 2, 3]
    heard.clear()
    again = weights_of(trainers[1].fit(plan, [1, 2, 3]))
    assert not heard
    assert all(torch.equal(first[name], again[name]) for name in first)
