"""Images that keep different numbers of patches: packed batches, what each image takes, and the fallback's word."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from flops import unfused
from patchslim.macs import steps_macs
from patchslim.plan import SlimPlan, make_plan
from patchslim.steps import Step, packed
from patchslim.steps.keep import Keep
from patchslim.steps.slice import Slice
from patchslim.steps.threshold import Threshold
from small import THRESHOLDS, make_host, make_images, predicting, relative
from step_plans import owning

CLOSE = 1e-5
SELECTORS = ("mlp", "context", "pool")
pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


def made(model: nn.Module, selector: str = "mlp", thresholds: list[float] = THRESHOLDS) -> tuple[SlimPlan, Any]:
    plan, weights = predicting(model, selector=selector, thresholds=thresholds)
    return plan, ps.apply(model, plan, weights)


def kept(slim: nn.Module, images: Tensor) -> Tensor:
    """Patches of each image and block: (B, L)."""
    return torch.stack([rows.any(dim=2).sum(dim=1) for rows in ps.sources(slim, images)], dim=1)


@pytest.mark.parametrize("selector", SELECTORS)
def test_packed_equals_one_at_a_time(kind: str, selector: str) -> None:
    _, slim = made(make_host(kind), selector)
    images = make_images(7)
    with torch.no_grad():
        assert relative(slim(images), torch.cat([slim(image) for image in images.split(1)])) < CLOSE


def test_images_keep_different_numbers_and_macs_follow() -> None:
    model, images = make_host(), make_images(16)
    plan, slim = made(model)
    counts = kept(slim, images)
    assert len(set(counts[:, 1].tolist())) > 3
    assert bool((counts[:, 1:] <= counts[:, :-1]).all())
    macs = ps.image_macs(slim, images).tolist()
    assert len(set(macs)) > 3
    assert macs == [steps_macs(ps.inspect(model), plan.steps, own) for own in counts.tolist()]


@pytest.mark.parametrize("selector", SELECTORS)
def test_what_an_image_takes_is_what_torch_counts(kind: str, selector: str) -> None:
    _, slim = made(unfused(kind), selector, [-3.0, -1.0, 0.0, 0.0])
    for image in make_images(3).split(1):  # alone, so that G runs on no filling
        with FlopCounterMode(display=False) as counter:
            slim(image)
        assert 2 * int(ps.image_macs(slim, image)) == counter.get_total_flops()


def test_an_image_that_would_keep_nothing_keeps_its_best(kind: str) -> None:
    model, images = make_host(kind), make_images(3)
    plan, slim = made(model, thresholds=[1e9] * 4)
    least = 3 if ps.inspect(model).reads_patches else 1
    assert kept(slim, images)[:, :3].tolist() == [[least] * 3] * 3
    assert kept(slim, images)[:, 3].tolist() == [plan.counts[3]] * 3


def test_an_image_with_fewer_patches_than_the_least_keeps_all_it_has() -> None:
    """The block before keeps as few as 2; some images have fewer than the next one's 8, others more."""
    model, images = make_host(), make_images(8)
    steps: list[Step] = [Threshold(n=9, above=0.1, least=2, hidden=4), Threshold(n=8, least=8, hidden=4)]
    plan, weights = owning(model, [*steps, Keep(), Slice(n=0)], scale=0.8)
    slim = ps.apply(model, plan, weights)
    before, after = kept(slim, images)[:, 0].tolist(), kept(slim, images)[:, 1].tolist()
    assert min(before) < 8 < max(before)
    assert after == [min(8, count) for count in before]
    with torch.no_grad():
        assert relative(slim(images), ps.masked_logits(model, plan, images, weights)) < CLOSE


def test_the_fallback_says_so_once_and_padding_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    _, slim = made(make_host())
    images = make_images(4)
    packed.say_once.cache_clear()
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        one_by_one = slim(images)
        slim(images)
    assert len([word for word in said if "packed attention" in str(word.message)]) == 1

    def padded(self: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, **how: Any) -> Tensor:
        return self._padded(q, k, v, scale)  # type: ignore[no-any-return]

    monkeypatch.setattr(packed.PackedMix, "_one_by_one", padded)
    with torch.no_grad():
        assert relative(slim(images), one_by_one) < CLOSE


@pytest.mark.parametrize(
    "steps",
    [
        [Threshold(n=9, above=0.0), Keep(), Keep(), Keep()],
        [Threshold(n=9, above=0.0, least=2), Keep(), Keep(), Threshold(n=3, least=3)],
        [Keep(), Keep(), Keep(), Threshold(n=3, above=0.0, least=3)],
    ],
)
def test_images_that_end_differently_are_refused(steps: list[Step]) -> None:
    """The head is given one tensor."""
    for kind in ("class", "mean"):
        with pytest.raises(ps.PlanError, match="images end with different numbers of patches"):
            make_plan(ps.inspect(make_host(kind)), steps)
