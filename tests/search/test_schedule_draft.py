"""Drafts: plans for a clock with any counts, models that run as real ones do, and what can be reached."""

import itertools
from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.hosts import open_host
from patchslim.macs import host_macs, steps_macs
from patchslim.search import Draft
from patchslim.slimmed.assemble import assembled_
from small import make_host, make_images

PATCHES = 16
WAYS: dict[str, Any] = {
    "drop": ps.methods.Drop(),
    "carry": ps.methods.PS(carry=True),
    "cover": ps.methods.Cover(),
    "merge": ps.methods.Merge(),
    "predict": ps.methods.Predict(),
    "predict drop": ps.methods.Predict(removed="drop"),
}
COUNTS = [(16, 16, 16), (12, 9, 5), (8, 8, 8), (16, 9, 9), (8, 4, 2)]


def draft_of(info: ps.HostInfo, way: str) -> Draft:
    draft: Draft = WAYS[way].draft(info)
    return draft


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["class", "mean with prefix", "attention pool", "lv"])
def test_a_sketch_keeps_what_it_is_told_and_runs(kind: str, way: str) -> None:
    model = make_host(kind)
    info = ps.inspect(model)
    for some in COUNTS:
        counts = (*some, some[-1] if info.reads_patches else 0)
        plan = draft_of(info, way).sketch(counts)
        assert (plan.counts, plan.method) == (counts, WAYS[way].name)
        assert plan == WAYS[way].sketch(info, counts)
        slim: Any = assembled_(open_host(make_host(kind)), plan)
        with torch.inference_mode():
            assert slim(make_images(2)).shape == (2, 7)
    assert not hasattr(model, "plan")


def test_patches_of_a_static_sketch_are_mixed() -> None:
    """A clock has to see the entrance that sorts tokens."""
    info = ps.inspect(make_host())
    for way in ("drop", "carry", "cover"):
        order = draft_of(info, way).sketch((9, 6, 3, 0)).order
        assert order is not None
        assert order != sorted(order)
        assert sorted(order) == list(range(PATCHES))
    assert draft_of(info, "merge").sketch((9, 6, 3, 0)).order is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["class", "mean"])
def test_no_plan_takes_less_or_more_than_what_can_be_reached(kind: str, way: str) -> None:
    """Of all counts that blocks of the kind can keep, by trying them."""
    info = ps.inspect(make_host(kind, depth=3))
    draft = draft_of(info, way)
    last = info.reads_patches
    found = []
    for counts in itertools.product(range(PATCHES + 1), repeat=3 if last else 2):
        above = (PATCHES, *counts)
        least = 0 if draft.empties and not last else 1
        if all(least <= n <= before for before, n in itertools.pairwise(above)):
            steps = draft.steps(counts if last else (*counts, 0), ())
            found.append(steps_macs(info, steps) / host_macs(info))
    low, high = draft.reachable()
    assert min(found) == pytest.approx(low)
    assert max(found) >= high  # with few patches to remove, choosing them may cost more than it saves
    assert high <= 1
