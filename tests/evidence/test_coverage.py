"""Which patches cover the others, against sums written out for every set that could be left; and static patches for the
others to join: nested, of the size asked for, and by the distances that are given."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchslim.data import as_source
from patchslim.evidence import coverage as module
from patchslim.evidence.coverage import CoverageSets, coverage_order
from patchslim.evidence.features import Features
from patchslim.hosts import open_host
from patchslim.steps.merge import make_distance
from small import CHANNELS, make_host, make_images

PATCHES, DEPTH = 16, 4


def drawn(images: int, patches: int, seed: int) -> tuple[Tensor, Tensor]:
    """Squared distances (B, t, t) between points, and weights (B, t)."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(images, patches, 3, generator=generator, dtype=torch.float64)
    return torch.cdist(points, points).square(), torch.rand(images, patches, generator=generator).double() + 0.1


def uncovered(distance: Tensor, weight: Tensor, stay: list[int]) -> float:
    """Σ over images and patches that are gone of their weight times the distance to the nearest that stays."""
    total = 0.0
    for image, own in zip(distance.tolist(), weight.tolist(), strict=True):
        gone = [patch for patch in range(len(own)) if patch not in stay]
        total += sum(own[patch] * min(image[patch][other] for other in stay) for patch in gone)
    return total


@settings(max_examples=40, deadline=None)
@given(images=st.integers(1, 3), patches=st.integers(2, 9), seed=st.integers(0, 999))
def test_the_patch_goes_whose_loss_leaves_the_least_uncovered(images: int, patches: int, seed: int) -> None:
    distance, weight = drawn(images, patches, seed)
    stay = list(range(patches))
    for out in coverage_order(distance, weight):
        costs = {patch: uncovered(distance, weight, [other for other in stay if other != patch]) for patch in stay}
        assert costs[out] <= min(costs.values()) + 1e-9
        stay.remove(out)
    assert len(stay) == 1


def test_the_first_that_go_are_those_of_the_whole_order() -> None:
    distance, weight = drawn(2, 8, 3)
    whole = coverage_order(distance, weight)
    assert [coverage_order(distance, weight, most) for most in (0, 1, 4, 7, 99)] == [
        whole[:most] for most in (0, 1, 4, 7, 99)
    ]


def test_a_single_patch_stays() -> None:
    assert coverage_order(torch.zeros(2, 1, 1), torch.ones(2, 1)) == []


def test_twins_are_thinned_out_before_anyone_alone_goes() -> None:
    place = torch.tensor([0.0, 0.01, 0.02, 5.0, 9.0, 9.01])
    distance = (place[:, None] - place).square()[None]
    assert set(coverage_order(distance, torch.ones(1, 6))[:3]) <= {0, 1, 2, 4, 5}
    assert 3 not in coverage_order(distance, torch.ones(1, 6))[:3]


def test_what_is_given_stays_as_it_was() -> None:
    distance, weight = drawn(2, 6, 0)
    before = distance.clone(), weight.clone()
    coverage_order(distance, weight)
    assert torch.equal(distance, before[0])
    assert torch.equal(weight, before[1])


def distances() -> dict[int, Any]:
    """A distance for every block, of nobody's making."""
    torch.manual_seed(4)
    return {layer: make_distance(24, CHANNELS) for layer in range(1, DEPTH + 1)}


def sets_of(model: Any, images: Tensor, batch_size: int = 3, memory: float = 2**30) -> CoverageSets:
    host = open_host(model)
    return CoverageSets(host, Features(host, as_source(images), batch_size, memory), distances())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, PATCHES), min_size=DEPTH, max_size=DEPTH).map(lambda n: sorted(n, reverse=True)))
def test_sets_are_nested_and_of_the_size_asked_for(counts: list[int]) -> None:
    kept = sets_of(make_host("mean"), make_images(2)).kept(counts)
    assert [len(block) for block in kept] == counts
    outer = set(range(PATCHES))
    for block in kept:
        assert block == sorted(block)
        assert set(block) <= outer
        outer = set(block)


def test_asking_for_other_counts_first_changes_nothing() -> None:
    """A search asks for many, and orders are remembered."""
    sets = sets_of(make_host("mean"), make_images(2))
    for counts in ([15, 9, 9, 4], [15, 7, 3, 3], [16, 9, 2, 1], [4, 4, 4, 4], [15, 9, 9, 4]):
        assert sets.kept(counts) == sets_of(make_host("mean"), make_images(2)).kept(counts)


@torch.no_grad()
def test_the_first_block_that_removes_goes_by_its_own_distance_of_the_hosts_patches() -> None:
    model: Any = make_host()
    images, distance = make_images(4), distances()[2]
    said = model.blocks[0](open_host(model).embed(images))[:, 1:] @ distance.weight.T + distance.bias
    z, weight = said[..., :-1], said[..., -1].exp()
    order = coverage_order(torch.cdist(z, z).square(), weight)
    kept = sets_of(model, images).kept([PATCHES, 10, 10, 0])
    assert kept[0] == list(range(PATCHES))
    assert kept[1] == kept[2] == sorted(set(range(PATCHES)) - set(order[:6]))
    assert kept[3] == []


def test_neither_batches_nor_the_bound_on_memory_change_it() -> None:
    model, images, counts = make_host(), make_images(5), [12, 9, 5, 0]
    wanted = sets_of(model, images, batch_size=5).kept(counts)
    assert sets_of(model, images, batch_size=2).kept(counts) == wanted
    assert sets_of(model, images, batch_size=2, memory=0.0).kept(counts) == wanted


def test_no_more_images_are_looked_at_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = make_host(), make_images(8)
    monkeypatch.setattr(module, "PAIR_BYTES", 4 * PATCHES**2 * 5)
    found = sets_of(model, images)
    assert {len(own) for own in (*found.features, *found.weights)} == {5}
    assert found.kept([9, 6, 3, 0]) == sets_of(model, images[:5]).kept([9, 6, 3, 0])
