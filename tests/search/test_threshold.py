"""Thresholds: the calibration images take the MACs that the plan says, close to what was asked for and not more."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.data import as_source
from patchslim.evidence.features import Features
from patchslim.hosts import open_host
from patchslim.macs import plan_macs, steps_macs
from patchslim.plan import SlimPlan, make_plan, static_steps
from patchslim.search.threshold import calibrate, with_thresholds
from patchslim.slimmed.assemble import fingerprint, own_weights
from patchslim.steps.predict import Predict
from patchslim.steps.selector import SelectorKind, make_selector
from small import make_host, make_images, steps_for

HIDDEN, PATCHES = 4, 16
COUNTS: list[tuple[int, ...]] = [(13, 9, 6, 3), (16, 10, 10, 5), (15, 14, 14, 14)]
LEAST: list[tuple[int, ...]] = [(1, 1, 1, 1), (2, 1, 1, 1)]
SOME = ["class", "registers", "mean with prefix", "attention pool"]
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


def predicting(model: nn.Module, counts: tuple[int, ...], selector: SelectorKind) -> SlimPlan:
    """A plan that predicts a fixed number per block."""
    info, hidden = ps.inspect(model), 0 if selector == "pool" else HIDDEN
    steps = steps_for(model, lambda n, layer: Predict(n=n, selector=selector, hidden=hidden), list(counts))
    return make_plan(info, steps)


@cache
def parts_of(kind: str, selector: SelectorKind) -> dict[int, nn.Module]:
    """G for every block, far from constant, and different from image to image."""
    info = ps.inspect(make_host(kind))
    torch.manual_seed(3)
    parts: dict[int, nn.Module] = {layer: make_selector(info, selector, HIDDEN) for layer in range(1, info.depth + 1)}
    for part in parts.values():
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=2.0)
    return parts


@cache
def calibrated(
    kind: str, counts: tuple[int, ...], selector: SelectorKind = "mlp", share: float = 1.0, images: int = 6
) -> tuple[Any, Tensor, int]:
    """The slim model of a plan calibrated for the MACs of its counts (or a share of them), the images, the budget."""
    model, seen, parts = make_host(kind), make_images(images), parts_of(kind, selector)
    host, plan = open_host(model), predicting(model, counts, selector)
    budget = round(share * plan_macs(host.info, plan))
    drafted = with_thresholds(plan, selector, 0 if selector == "pool" else HIDDEN)
    found = calibrate(host, Features(host, as_source(seen), 4, 2**30), drafted, parts, budget)
    weights = own_weights(host, found, parts)
    return ps.apply(model, found.with_(weights=fingerprint(weights)), weights), seen, budget


def mean_macs(slim: Any, images: Tensor) -> float:
    return float(ps.image_macs(slim, images).double().mean())


def kept_by(slim: Any, images: Tensor) -> Tensor:
    """Patches per block and image, (blocks, images)."""
    return torch.stack([rows.any(dim=2).sum(dim=1) for rows in ps.sources(slim, images)])


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("kind", SOME)
def test_the_mean_meets_the_budget_from_below_and_is_what_the_plan_says(kind: str, counts: tuple[int, ...]) -> None:
    slim, images, budget = calibrated(kind, counts)
    info = ps.inspect(make_host(kind))
    everything, less = (steps_macs(info, static_steps(info, [n] * 4, "slice")) for n in (PATCHES, PATCHES - 1))
    mean = mean_macs(slim, images)
    assert budget - (everything - less) / 4 < mean <= budget + 0.5  # average_macs is rounded
    assert slim.plan.average_macs == round(mean) == ps.count_macs(slim)


@pytest.mark.parametrize("selector", ["context", "pool"])
@pytest.mark.parametrize("kind", ["class", "mean with prefix"])
def test_other_selectors_are_calibrated_alike(kind: str, selector: Any) -> None:
    slim, images, budget = calibrated(kind, (13, 9, 6, 3), selector)
    assert slim.plan.average_macs == round(mean_macs(slim, images))
    assert 0.97 * budget < mean_macs(slim, images) <= budget + 0.5


@pytest.mark.parametrize("kind", ["class", "mean with prefix"])
@pytest.mark.parametrize("share", [0.85, 1.05])
def test_other_budgets_are_met_by_scaling_the_counts(kind: str, share: float) -> None:
    slim, images, budget = calibrated(kind, (13, 9, 6, 3), share=share)
    assert 0.97 * budget < mean_macs(slim, images) <= budget + 0.5


@pytest.mark.parametrize("counts", [*COUNTS, *LEAST])
@pytest.mark.parametrize("kind", SOME)
def test_every_image_keeps_a_patch_until_the_last_block_and_as_many_as_are_read(
    kind: str, counts: tuple[int, ...]
) -> None:
    """However the scores lie, the least budgets are met: past some threshold an image keeps only its best."""
    slim, images, budget = calibrated(kind, counts)
    kept = kept_by(slim, images)
    assert int(kept[:-1].min()) >= 1
    assert bool((kept[1:] <= kept[:-1]).all())
    assert kept[-1].tolist() == [slim.plan.counts[-1]] * len(images)
    assert mean_macs(slim, images) <= budget + 0.5


def test_images_differ_and_blocks_keep_their_counts_on_average_scaled_alike() -> None:
    slim, images, _ = calibrated("class", (13, 9, 6, 3), images=16)
    kept = kept_by(slim, images)[:3].double()
    assert len(set(kept[1].tolist())) > 3
    scale = kept.mean(dim=1) / torch.tensor(slim.plan.counts[:3])
    assert torch.allclose(scale, scale.mean().expand(3), atol=0.05)


def test_everything_kept_stays_everything(kind: str) -> None:
    slim, images, budget = calibrated(kind, (16, 16, 16, 16))
    assert kept_by(slim, images).T.tolist() == [list(slim.plan.counts)] * len(images)
    assert slim.plan.average_macs == budget


@pytest.mark.parametrize("kind", ["class", "mean"])
def test_calibration_does_not_depend_on_batches_or_the_bound_on_memory(kind: str) -> None:
    slim, images, budget = calibrated(kind, (13, 9, 6, 3))
    host = open_host(make_host(kind))
    drafted = with_thresholds(predicting(make_host(kind), (13, 9, 6, 3), "mlp"), "mlp", HIDDEN)
    uncached = Features(host, as_source(images), len(images), 0.0)
    again = calibrate(host, uncached, drafted, parts_of(kind, "mlp"), budget)
    assert again.average_macs == slim.plan.average_macs
    found, wanted = ([getattr(step, "above", None) for step in plan.steps] for plan in (again, slim.plan))
    assert [above is None for above in found] == [above is None for above in wanted]
    thresholds = [(a, b) for a, b in zip(found, wanted, strict=True) if a is not None]
    assert [a for a, _ in thresholds] == pytest.approx([b for _, b in thresholds], rel=1e-4, abs=1e-4)
