"""Remembered prefixes change no error, whatever the bound, and the bound holds."""

from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor, nn

from patchslim.data import as_source
from patchslim.evidence.coverage import CoverageSets
from patchslim.evidence.features import Features
from patchslim.hosts import Host, open_host
from patchslim.plan import SlimPlan, static_plan
from patchslim.search.measured import PrefixMemory, measure
from patchslim.slimmed import apply
from patchslim.slimmed.assemble import own_weights
from patchslim.steps.merge import make_distance
from patchslim.steps.selector import make_selector
from searches import readout_error
from small import CHANNELS, covering, make_host, make_images, merging, predicting

COUNTS = ([13, 9, 6, 3], [13, 9, 6, 4], [13, 9, 7, 4], [13, 9, 6, 3], [16, 9, 7, 4], [13, 10, 7, 4])


def parts_of(host: Host, way: str) -> dict[int, nn.Module]:
    """The same parts for all counts, as in a search."""
    if way in ("merge", "cover"):
        return {layer: make_distance(24, CHANNELS) for layer in range(1, 5)}
    return {layer: make_selector(host.info, "mlp", 4) for layer in range(1, 5)} if way == "predict" else {}


def plan_of(host: Host, way: str, counts: list[int], sets: CoverageSets) -> SlimPlan:
    """A plan with so many patches per block."""
    if way == "cover":
        return covering(host.model, sets.kept(counts), drops=(2,))[0].with_(weights="")
    return (merging if way == "merge" else predicting)(host.model, counts=counts)[0].with_(weights="")


@pytest.mark.parametrize("way", ["merge", "predict", "cover"])
@pytest.mark.parametrize("limit", [0, 30_000, 10**9])
def test_errors_are_the_same_to_the_bit_and_the_bound_holds(way: str, limit: int) -> None:
    model, images = make_host("mean"), make_images(5)
    host = open_host(model)
    features, memory = Features(host, as_source(images), 2, 10**9), PrefixMemory(limit)
    parts = parts_of(host, way)
    sets = CoverageSets(host, features, parts_of(host, "cover"))
    for counts in COUNTS:
        plan = plan_of(host, way, counts, sets)
        found = measure(host, features, plan, parts, memory)
        assert found == measure(host, features, plan, parts)
        weights: Mapping[str, Tensor] = own_weights(host, plan, parts)
        assert found == pytest.approx(readout_error(model, images, apply(model, plan, weights)), rel=1e-4)
        assert memory.used <= limit
    assert bool(memory.states) == (limit > 0)


def test_other_patches_in_the_same_numbers_are_another_prefix() -> None:
    host = open_host(make_host("mean"))
    features, memory = Features(host, as_source(make_images(4)), 2, 10**9), PrefixMemory(10**9)
    errors = []
    for order in (list(range(16)), list(range(15, -1, -1))):
        plan = static_plan(host.info, [order[:count] for count in (13, 9, 6, 3)])
        errors.append(measure(host, features, plan, {}, memory))
        assert errors[-1] == measure(host, features, plan, {})
    assert errors[0] != errors[1]


def test_blocks_of_a_known_prefix_do_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    host = open_host(make_host("mean"))
    features, memory = Features(host, as_source(make_images(4)), 2, 10**9), PrefixMemory(10**9)
    parts, ran = parts_of(host, "merge"), list[int]()
    math: Any = type(host.math)
    read = math.read

    def noted(self: Any, block: Any, x: Tensor) -> Any:
        ran.append(x.shape[1])
        return read(self, block, x)

    monkeypatch.setattr(math, "read", noted)
    for counts, tokens in (([13, 9, 6, 3], [16, 13, 9, 6]), ([13, 9, 5, 3], [9, 5]), ([13, 9, 6, 4], [6])):
        ran.clear()
        measure(host, features, merging(host.model, counts)[0], parts, memory)
        assert ran == [each for each in tokens for _ in range(2)]  # two batches
