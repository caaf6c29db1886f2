"""Thresholds: the calibration images take the MACs that the plan says, close to what was asked for and not more."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import patchslim as ps
from patchslim.data import as_source
from patchslim.hosts import open_host
from patchslim.macs import macs_of_counts, plan_macs
from patchslim.plan import PredictorSpec, SlimPlan, build_plan
from patchslim.search.features import Features
from patchslim.search.threshold import calibrate
from patchslim.slim.assemble import name_choosers
from patchslim.slim.chooser import chooser_fingerprint
from patchslim.slim.predictor import make_predictor
from small import make_host, make_images

HIDDEN, PATCHES = 4, 16
COUNTS: list[tuple[int, ...]] = [(13, 9, 6, 3), (16, 10, 10, 5), (15, 14, 14, 14)]
LEAST: list[tuple[int, ...]] = [(1, 1, 1, 1), (2, 1, 1, 1)]
SOME = ["class", "registers", "mean with prefix", "attention pool"]
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


@cache
def calibrated(
    kind: str, counts: tuple[int, ...], predictor: Any = "mlp", share: float = 1.0, images: int = 6
) -> tuple[SlimPlan, Any, Tensor, int]:
    """A calibrated plan for the MACs of its counts (or a share of them), its slim model, the images, and the budget."""
    model, seen = make_host(kind), make_images(images)
    host = open_host(model)
    info = host.info
    torch.manual_seed(3)
    predictors = {layer: make_predictor(info, predictor, HIDDEN) for layer in range(1, info.depth + 1)}
    for made in predictors.values():
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=2.0)  # far from constant, and different from image to image
    spec = PredictorSpec(kind=predictor, hidden=HIDDEN, weights="")
    kept = list(counts) if info.reads_patches else [*counts[:-1], 0]
    plan = build_plan(info, select="predicted", predictor=spec, patches_per_block=kept)
    budget = round(share * plan_macs(info, plan))
    found = calibrate(host, Features(host, as_source(seen), 4, 2**30), plan, predictors, budget)
    assert found.predictor is not None
    weights = name_choosers(host, {layer: predictors[layer] for layer in found.choosing})
    signed = found.predictor.model_copy(update={"weights": chooser_fingerprint(weights)})
    found = build_plan(info, **(found.model_dump(exclude={"host"}) | {"predictor": signed}))  # checked once more
    return found, ps.apply(model, found, weights), seen, budget


def mean_macs(slim: Any, images: Tensor) -> float:
    return float(slim.image_macs(images).double().mean())


def kept_by(slim: Any, images: Tensor) -> Tensor:
    """Patches per block and image, (blocks, images)."""
    return torch.stack([rows.any(dim=2).sum(dim=1) for rows in slim.sources(images)])


@pytest.mark.parametrize("counts", [*COUNTS, *LEAST])
@pytest.mark.parametrize("kind", SOME)
def test_images_take_the_macs_that_the_plan_says(kind: str, counts: tuple[int, ...]) -> None:
    plan, slim, images, _ = calibrated(kind, counts)
    assert plan.mode == "threshold"
    assert plan.predictor is not None
    assert plan.predictor.average_macs == round(mean_macs(slim, images))
    assert plan_macs(slim.host_info, plan) == plan.predictor.average_macs


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("kind", SOME)
def test_the_mean_meets_the_budget_from_below(kind: str, counts: tuple[int, ...]) -> None:
    _, slim, images, budget = calibrated(kind, counts)
    everything, one_less = (macs_of_counts(slim.host_info, [count] * 4) for count in (PATCHES, PATCHES - 1))
    a_patch = (everything - one_less) / 4
    assert budget - a_patch < mean_macs(slim, images) <= budget + 0.5  # average_macs is rounded


@pytest.mark.parametrize("predictor", ["context", "pool"])
@pytest.mark.parametrize("kind", ["class", "mean with prefix"])
def test_other_predictors_are_calibrated_alike(kind: str, predictor: Any) -> None:
    plan, slim, images, budget = calibrated(kind, (13, 9, 6, 3), predictor)
    assert plan.predictor is not None
    assert plan.predictor.average_macs == round(mean_macs(slim, images))
    assert 0.97 * budget < mean_macs(slim, images) <= budget + 0.5


@pytest.mark.parametrize("kind", ["class", "mean with prefix"])
@pytest.mark.parametrize("share", [0.85, 1.05])
def test_other_budgets_are_met_by_scaling_the_counts(kind: str, share: float) -> None:
    _, slim, images, budget = calibrated(kind, (13, 9, 6, 3), share=share)
    assert 0.97 * budget < mean_macs(slim, images) <= budget + 0.5


@pytest.mark.parametrize("counts", LEAST)
@pytest.mark.parametrize("kind", SOME)
def test_the_least_budgets_are_met_too(kind: str, counts: tuple[int, ...]) -> None:
    """However the scores lie: there is always a threshold past which every image keeps only its best."""
    _, slim, images, budget = calibrated(kind, counts)
    assert mean_macs(slim, images) <= budget + 0.5


@pytest.mark.parametrize("counts", [*COUNTS, *LEAST])
@pytest.mark.parametrize("kind", SOME)
def test_every_image_keeps_a_patch_until_the_last_block_and_as_many_as_are_read(
    kind: str, counts: tuple[int, ...]
) -> None:
    plan, slim, images, _ = calibrated(kind, counts)
    kept = kept_by(slim, images)
    assert int(kept[:-1].min()) >= 1
    assert bool((kept[1:] <= kept[:-1]).all())
    assert kept[-1].tolist() == [plan.counts[-1]] * len(images)


def test_images_differ_and_blocks_keep_their_counts_on_average_scaled_alike() -> None:
    plan, slim, images, _ = calibrated("class", (13, 9, 6, 3), images=16)
    kept = kept_by(slim, images)[:3].double()
    assert len(set(kept[1].tolist())) > 3
    scale = kept.mean(dim=1) / torch.tensor(plan.counts[:3])
    assert torch.allclose(scale, scale.mean().expand(3), atol=0.05)


def test_everything_kept_stays_everything(kind: str) -> None:
    plan, slim, images, budget = calibrated(kind, (16, 16, 16, 16))
    assert kept_by(slim, images).T.tolist() == [list(plan.counts)] * len(images)
    assert plan.predictor is not None
    assert plan.predictor.average_macs == budget


@pytest.mark.parametrize("kind", ["class", "mean"])
def test_calibration_does_not_depend_on_batches_or_the_cache(kind: str) -> None:
    plan, slim, images, budget = calibrated(kind, (13, 9, 6, 3))
    assert plan.predictor is not None
    host = open_host(make_host(kind))
    predictors = {layer: slim.blocks[layer - 1].predictor for layer in plan.choosing}
    top_k = plan.predictor.model_copy(update={"mode": "top-k", "thresholds": None, "average_macs": None})
    uncached = Features(host, as_source(images), len(images), 0.0)
    again = calibrate(host, uncached, plan.model_copy(update={"predictor": top_k}), predictors, budget)
    assert again.predictor is not None
    assert again.predictor.average_macs == plan.predictor.average_macs
    assert again.predictor.thresholds == pytest.approx(plan.predictor.thresholds, rel=1e-4, abs=1e-4)
