"""Which patches cover the others, against sums written out for every set that could be left."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchslim.evidence.coverage import coverage_order


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
