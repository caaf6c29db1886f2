"""Remembered prefixes change no error, whatever the bound, and the bound holds."""

from typing import Any

import pytest
from torch import Tensor

from patchslim.data import tensor_images
from patchslim.hosts import open_host
from patchslim.plan import build_plan
from patchslim.search.cover import Cover
from patchslim.search.features import Features
from patchslim.search.measured import measure
from patchslim.search.prefix import PrefixMemory
from patchslim.slim.assemble import load_choosers
from searches import readout_error
from small import make_host, make_images, per_image_plan

WAYS: list[dict[str, Any]] = [
    {"select": "matched", "removed": "merge"},
    {"select": "predicted", "removed": "drop"},
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", [0, 30_000, 10**9])
def test_errors_are_the_same_and_the_bound_holds(way: dict[str, Any], limit: int) -> None:
    model = make_host("mean")
    host = open_host(model)
    features = Features(host, tensor_images(make_images(5)), 2, 10**9)
    memory = PrefixMemory(limit)
    for counts in ([13, 9, 6, 3], [13, 9, 6, 4], [13, 9, 7, 4], [13, 9, 6, 3], [16, 9, 7, 4], [13, 10, 7, 4]):
        plan, weights = per_image_plan(model, counts=counts, **way)
        predictors = load_choosers(host, plan, weights)
        assert measure(host, features, plan, predictors, memory) == measure(host, features, plan, predictors)
        assert memory.used <= limit
    assert bool(memory.states) == (limit > 0)


@pytest.mark.parametrize("limit", [0, 30_000, 10**9])
def test_static_patches_that_others_join_come_out_the_same_to_the_bit(limit: int) -> None:
    model = make_host("mean")
    host = open_host(model)
    features = Features(host, tensor_images(make_images(5)), 2, 10**9)
    memory, cover = PrefixMemory(limit), Cover(host, features, "coverage", 0)
    for counts in ([13, 9, 6, 3], [13, 9, 6, 4], [13, 9, 7, 4], [13, 9, 6, 3], [16, 9, 7, 4], [13, 10, 7, 4]):
        plan = build_plan(host.info, removed="merge", kept=cover.kept(counts), drops=[2])
        found = measure(host, features, plan, {}, memory)
        assert found == measure(host, features, plan, {})
        assert found == pytest.approx(readout_error(model, make_images(5), plan, {}), rel=1e-4)
        assert memory.used <= limit


def test_blocks_of_a_known_prefix_do_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_host("mean")
    host = open_host(model)
    features = Features(host, tensor_images(make_images(4)), 2, 10**9)
    memory = PrefixMemory(10**9)
    ran: list[int] = []
    math: Any = type(host.math)
    read = math.read

    def noted(self: Any, block: Any, x: Tensor) -> Any:
        ran.append(x.shape[1])
        return read(self, block, x)

    monkeypatch.setattr(math, "read", noted)
    for counts, tokens in (([13, 9, 6, 3], [16, 13, 9, 6]), ([13, 9, 5, 3], [9, 5]), ([13, 9, 6, 4], [6])):
        ran.clear()
        plan, _ = per_image_plan(model, "matched", "merge", counts)
        measure(host, features, plan, {}, memory)
        assert ran == [each for each in tokens for _ in range(2)]  # two batches
